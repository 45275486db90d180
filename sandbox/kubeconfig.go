package sandbox

import (
	"bytes"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// localKubeconfig returns a kubeconfig for use on this machine, where names of Services do not resolve: the address of
// the server replaces its host name, and tls-server-name keeps the certificate verified for the host name. The cluster,
// user and context have a name that is unique in the sandbox, so that $KUBECONFIG can list the files of all clusters.
func localKubeconfig(content []byte, name string, address netip.AddrPort) ([]byte, error) {
	kubeconfig, err := clientcmd.Load(content)
	if err != nil {
		return nil, fmt.Errorf("parse a kubeconfig: %w", err)
	}
	for _, cluster := range kubeconfig.Clusters {
		server, err := url.Parse(cluster.Server)
		if err != nil {
			return nil, fmt.Errorf("parse a kubeconfig: %w", err)
		}
		if host := server.Hostname(); net.ParseIP(host) == nil && cluster.TLSServerName == "" {
			cluster.TLSServerName = host
		}
		server.Host = address.String()
		cluster.Server = server.String()
	}
	rename(kubeconfig, name)
	return clientcmd.Write(*kubeconfig)
}

// rename renames the current context, its cluster and its user.
func rename(kubeconfig *clientcmdapi.Config, name string) {
	current := kubeconfig.Contexts[kubeconfig.CurrentContext]
	if current == nil {
		return
	}
	cluster, user := kubeconfig.Clusters[current.Cluster], kubeconfig.AuthInfos[current.AuthInfo]
	delete(kubeconfig.Clusters, current.Cluster)
	delete(kubeconfig.AuthInfos, current.AuthInfo)
	delete(kubeconfig.Contexts, kubeconfig.CurrentContext)
	kubeconfig.Clusters[name], kubeconfig.AuthInfos[name] = cluster, user
	kubeconfig.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: current.Namespace}
	kubeconfig.CurrentContext = name
}

// replaceFile replaces a file atomically, unless its content is equal. The mode of the file is 0600.
func replaceFile(file string, content []byte) error {
	if before, err := os.ReadFile(file); err == nil && bytes.Equal(before, content) {
		return nil
	}
	if err := os.WriteFile(file+".new", content, 0o600); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}
