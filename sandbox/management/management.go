// Package management configures the management API server of a sandbox: its certificates, command line and kubeconfigs.
package management

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/pki"
	"quorate.dev/sandbox/addresses"
)

// SecurePort is the port of the management API server. Its embedded etcd member listens on no port.
const SecurePort = 6443

// Plane is the configuration of the management API server.
type Plane struct {
	directory string // directory of its certificates and data
	network   addresses.Network
}

// New returns the configuration of a management API server. In directory, it creates keys and certificates that are
// missing, and renews certificates that are due for renewal.
func New(directory string, network addresses.Network, now time.Time) (*Plane, error) {
	p := &Plane{directory: directory, network: network}
	if err := os.MkdirAll(p.file(""), 0o700); err != nil {
		return nil, err
	}
	if err := p.certificates(now); err != nil {
		return nil, err
	}
	if err := os.WriteFile(p.file(auditPolicyFile), []byte(auditPolicy), 0o600); err != nil {
		return nil, err
	}
	return p, p.serviceAccountKey()
}

// Certificate authorities, one for each purpose, so that no certificate is valid for two purposes. The names are also
// file names.
const (
	servingAuthority       = "serving-ca"
	clientAuthority        = "client-ca"         // signs the certificates of clients of the API
	kubeletClientAuthority = "kubelet-client-ca" // signs the certificates of clients of the node
	// Signs the certificate of the API server as a client of extension API servers.
	frontProxyAuthority = "front-proxy-ca"
)

// certificates creates the certificate authorities and the certificates that are missing or due for renewal.
func (p *Plane) certificates(now time.Time) error {
	server := net.IP(p.network.Server().AsSlice())
	first := net.IP(p.network.Services().Addr().Next().AsSlice())
	for authority, leaves := range map[string]map[string]pki.Leaf{
		servingAuthority: {
			"server": {CommonName: "kube-apiserver", Addresses: []net.IP{server, first}, Server: true, DNSNames: []string{
				"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local",
			}},
			"kubelet": {CommonName: "system:node:sandbox", Organizations: []string{"system:nodes"},
				Addresses: []net.IP{p.network.Node().AsSlice()}, Server: true},
		},
		clientAuthority: {
			"admin":    {CommonName: "sandbox-admin", Organizations: []string{"system:masters"}, Client: true},
			"operator": {CommonName: OperatorUser, Organizations: operatorGroups, Client: true},
		},
		frontProxyAuthority: {
			"front-proxy-client": {CommonName: frontProxyClient, Client: true},
		},
		kubeletClientAuthority: {
			"kubelet-client": {CommonName: KubeletClient, Client: true},
		},
	} {
		issuer, err := p.authority(authority, now)
		if err != nil {
			return err
		}
		for name, leaf := range leaves {
			if err := p.leaf(name, issuer, leaf, now); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Plane) file(name string) string { return filepath.Join(p.directory, "pki", name) }

// Address returns the address of the management API server.
func (p *Plane) Address() netip.AddrPort { return netip.AddrPortFrom(p.network.Server(), SecurePort) }

// Args returns the arguments of the command `quorate apiserver`.
func (p *Plane) Args() []string {
	c := config.Default()
	address := p.network.Server().String()
	c.Serving.BindAddress, c.Serving.AdvertiseAddress, c.Serving.Port = address, address, SecurePort
	c.Serving.CertFile, c.Serving.KeyFile = p.file("server.crt"), p.file("server.key")
	c.Member.DataDirectory, c.Member.Name = filepath.Join(p.directory, "etcd"), "management"
	c.Authentication.ClientCAFile = p.file(clientAuthority + ".crt")
	c.Authentication.RequestHeaderCAFile = p.file(frontProxyAuthority + ".crt")
	c.Authentication.RequestHeaderAllowedNames = []string{frontProxyClient}
	c.Authentication.RequestHeaderUsername = []string{"X-Remote-User"}
	c.Authentication.RequestHeaderUID = []string{"X-Remote-Uid"}
	c.Authentication.RequestHeaderGroup = []string{"X-Remote-Group"}
	c.Authentication.RequestHeaderExtraPrefix = []string{"X-Remote-Extra-"}
	c.API.ProxyClientCertFile, c.API.ProxyClientKeyFile =
		p.file("front-proxy-client.crt"), p.file("front-proxy-client.key")
	c.Authentication.ServiceAccountIssuers = []string{"https://kubernetes.default.svc.cluster.local"}
	c.Authentication.ServiceAccountSigningKey = p.file("service-account.key")
	c.Authentication.ServiceAccountKeyFiles = []string{p.file("service-account.key")}
	c.Authorization.Modes = []string{"RBAC"}
	// The plugin adds a finalizer to every PersistentVolume, but the node removes it only from volumes that it has
	// provisioned.
	c.Admission.Disable = []string{"StorageObjectInUseProtection"}
	c.API.ServiceClusterIPRange = p.network.Services().String()
	c.API.KubeletClientCertFile, c.API.KubeletClientKeyFile = p.file("kubelet-client.crt"), p.file("kubelet-client.key")
	c.API.KubeletCAFile = p.file(servingAuthority + ".crt")
	c.API.KubeletAddressTypes = []string{"InternalIP"} // the name of the node does not resolve
	c.API.EndpointReconcilerType = "none"              // addresses in Endpoints must not be loopback addresses
	c.Controllers.Enabled = []string{"*"}
	c.Audit.PolicyFile = p.file(auditPolicyFile)
	c.Audit.Log.Path, c.Audit.Log.MaxSize, c.Audit.Log.MaxBackups = filepath.Join(p.directory, AuditLog), 50, 1
	return c.Args()
}

// frontProxyClient is the common name of the client certificate with which the API server connects to extension API
// servers.
const frontProxyClient = "front-proxy-client"

// KubeletClient is the common name of the client certificate with which the API server connects to the node.
const KubeletClient = "kube-apiserver-kubelet-client"

// KubeletTLS returns the TLS configuration of the node's kubelet API.
func (p *Plane) KubeletTLS() (*tls.Config, error) {
	certificate, err := tls.LoadX509KeyPair(p.file("kubelet.crt"), p.file("kubelet.key"))
	if err != nil {
		return nil, fmt.Errorf("the node's certificate: %w", err)
	}
	authority, err := os.ReadFile(p.file(kubeletClientAuthority + ".crt"))
	if err != nil {
		return nil, err
	}
	clients := x509.NewCertPool()
	clients.AppendCertsFromPEM(authority)
	return &tls.Config{
		Certificates: []tls.Certificate{certificate}, ClientCAs: clients, ClientAuth: tls.RequireAndVerifyClientCert,
		MinVersion: tls.VersionTLS12,
	}, nil
}

// WriteKubeconfig writes the administrator's kubeconfig.
func (p *Plane) WriteKubeconfig(file string) error { return p.writeKubeconfig(file, "admin") }

// WriteOperatorKubeconfig writes the operator's kubeconfig.
func (p *Plane) WriteOperatorKubeconfig(file string) error {
	return p.writeKubeconfig(file, "operator")
}

// writeKubeconfig writes the kubeconfig of a user, whose client certificate has the user's name as its file name.
func (p *Plane) writeKubeconfig(file, user string) error {
	read := func(name string) []byte {
		content, _ := os.ReadFile(p.file(name)) // New has created it
		return content
	}
	kubeconfig := clientcmdapi.NewConfig()
	kubeconfig.Clusters["management"] = &clientcmdapi.Cluster{
		Server: "https://" + p.Address().String(), CertificateAuthorityData: read(servingAuthority + ".crt"),
	}
	kubeconfig.AuthInfos[user] = &clientcmdapi.AuthInfo{
		ClientCertificateData: read(user + ".crt"), ClientKeyData: read(user + ".key"),
	}
	kubeconfig.Contexts["management"] = &clientcmdapi.Context{Cluster: "management", AuthInfo: user}
	kubeconfig.CurrentContext = "management"
	return clientcmd.WriteToFile(*kubeconfig, file)
}

func (p *Plane) authority(name string, now time.Time) (pki.Authority, error) {
	pair, err := p.read(name)
	if errors.Is(err, fs.ErrNotExist) {
		authority, err := pki.NewAuthority("quorate-sandbox-"+name, pki.AuthorityLifetime, now)
		if err != nil {
			return pki.Authority{}, err
		}
		return authority, p.write(name, authority.Pair)
	}
	if err != nil {
		return pki.Authority{}, err
	}
	authority, err := pki.ParseAuthority(pair)
	if err != nil {
		return pki.Authority{}, fmt.Errorf("read %s: %w", p.file(name+".crt"), err)
	}
	return authority, nil
}

func (p *Plane) leaf(name string, authority pki.Authority, leaf pki.Leaf, now time.Time) error {
	pair, err := p.read(name)
	if err == nil && authority.Evaluate(pair, leaf, now) == "" {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	pair, err = authority.Issue(leaf, now)
	if err != nil {
		return err
	}
	return p.write(name, pair)
}

// serviceAccountKey creates the key pair that signs and verifies service-account tokens, if it is missing.
func (p *Plane) serviceAccountKey() error {
	file := p.file("service-account.key")
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	pair, err := pki.NewServiceAccountKey()
	if err != nil {
		return err
	}
	return os.WriteFile(file, pair.Key, 0o600)
}

func (p *Plane) read(name string) (pki.Pair, error) {
	certificate, err := os.ReadFile(p.file(name + ".crt"))
	if err != nil {
		return pki.Pair{}, err
	}
	key, err := os.ReadFile(p.file(name + ".key"))
	return pki.Pair{Certificate: certificate, Key: key}, err
}

// write writes a certificate and its key. Invariant: a certificate never exists without its key, so that the key is
// written first.
func (p *Plane) write(name string, pair pki.Pair) error {
	if err := os.WriteFile(p.file(name+".key"), pair.Key, 0o600); err != nil {
		return err
	}
	return os.WriteFile(p.file(name+".crt"), pair.Certificate, 0o600)
}
