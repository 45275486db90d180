package sandbox

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"

	"k8s.io/client-go/tools/clientcmd"
)

// localKubeconfig makes a kubeconfig usable on the machine, where Service names do not resolve: the server is
// named by its address, and its certificate is checked for the name as before.
func localKubeconfig(content []byte, address netip.AddrPort) ([]byte, error) {
	kubeconfig, err := clientcmd.Load(content)
	if err != nil {
		return nil, fmt.Errorf("reading a kubeconfig: %w", err)
	}
	for _, cluster := range kubeconfig.Clusters {
		server, err := url.Parse(cluster.Server)
		if err != nil {
			return nil, fmt.Errorf("reading a kubeconfig: %w", err)
		}
		if host := server.Hostname(); net.ParseIP(host) == nil && cluster.TLSServerName == "" {
			cluster.TLSServerName = host
		}
		server.Host = address.String()
		cluster.Server = server.String()
	}
	return clientcmd.Write(*kubeconfig)
}

// replaceFile writes a file of secrets, unless it is so already. Nobody sees half of it.
func replaceFile(file string, content []byte) error {
	if before, err := os.ReadFile(file); err == nil && bytes.Equal(before, content) {
		return nil
	}
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
