package upstream

import (
	"net"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// WriteKubeconfig writes a client configuration to a file.
func WriteKubeconfig(path string, client *rest.Config) error {
	file := clientcmdapi.NewConfig()
	file.Clusters["server"] = &clientcmdapi.Cluster{Server: client.Host, CertificateAuthorityData: client.CAData}
	file.AuthInfos["user"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: client.CertData, ClientKeyData: client.KeyData, Token: client.BearerToken,
	}
	file.Contexts["context"] = &clientcmdapi.Context{Cluster: "server", AuthInfo: "user"}
	file.CurrentContext = "context"
	return clientcmd.WriteToFile(*file, path)
}

// GlobalAddress returns an address of this machine that is not a loopback address, because proxies and EndpointSlices
// reject loopback addresses. It returns "" if the machine has none.
func GlobalAddress(t testing.TB) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range addresses {
		if network, ok := address.(*net.IPNet); ok && network.IP.IsGlobalUnicast() && network.IP.To4() != nil {
			return network.IP.String()
		}
	}
	return ""
}
