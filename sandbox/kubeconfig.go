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

// localKubeconfig replaces the server's host name by its address, because Service names do not resolve on the machine.
// tls-server-name keeps the certificate verification for the name.
func localKubeconfig(content []byte, address netip.AddrPort) ([]byte, error) {
	kubeconfig, err := clientcmd.Load(content)
	if err != nil {
		return nil, fmt.Errorf("parsing a kubeconfig: %w", err)
	}
	for _, cluster := range kubeconfig.Clusters {
		server, err := url.Parse(cluster.Server)
		if err != nil {
			return nil, fmt.Errorf("parsing a kubeconfig: %w", err)
		}
		if host := server.Hostname(); net.ParseIP(host) == nil && cluster.TLSServerName == "" {
			cluster.TLSServerName = host
		}
		server.Host = address.String()
		cluster.Server = server.String()
	}
	return clientcmd.Write(*kubeconfig)
}

// replaceFile atomically replaces a file with mode 0600 if its content has changed.
func replaceFile(file string, content []byte) error {
	if before, err := os.ReadFile(file); err == nil && bytes.Equal(before, content) {
		return nil
	}
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
