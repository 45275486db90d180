package desired

import (
	"net"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmd "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/pki"
)

// Trust domains. Each has its own certificate authority, in the Secret <cluster>-<domain>.
const (
	ServingDomain    = "serving-ca"
	ClientDomain     = "client-ca"
	FrontProxyDomain = "front-proxy-ca"
	PeerDomain       = "etcd-peer-ca"
	EtcdClientDomain = "etcd-client-ca" // servers and clients of the members' client URLs
)

const frontProxyName = "front-proxy-client"

// AuthorityKey is the key of a leaf's Secret that contains the authority's certificate.
const AuthorityKey = "ca.crt"

// KubeconfigKey is the key of the Secret <cluster>-admin-kubeconfig.
const KubeconfigKey = "kubeconfig"

// ServiceAccountSecret is the suffix of the Secret with the signing key of service-account tokens.
const ServiceAccountSecret = "service-account"

// Keys of the service-account Secret.
const (
	ServiceAccountPublicKey  = "service-account.pub"
	ServiceAccountPrivateKey = "service-account.key"
)

// Domains returns the trust domains of a cluster.
func Domains(cluster *v1alpha1.ApiServerCluster) []string {
	domains := []string{ServingDomain, ClientDomain, FrontProxyDomain}
	if !cluster.ExternalEtcd() {
		domains = append(domains, PeerDomain, EtcdClientDomain)
	}
	return domains
}

// Certificate is a leaf certificate with its trust domain and Secret.
type Certificate struct {
	Secret string // suffix of the name of the Secret
	Domain string
	Leaf   pki.Leaf
}

// Suffixes of the Secrets of the leaves that the operator uses.
const (
	AdminSecret        = "admin"
	OperatorEtcdSecret = "operator-etcd-client"
)

// Certificates returns the leaves of a cluster. Addresses are the host names and IP addresses of the Service.
func Certificates(cluster *v1alpha1.ApiServerCluster, addresses []string) []Certificate {
	leaves := []Certificate{
		{"serving", ServingDomain, servingLeaf(cluster, addresses)},
		{"front-proxy-client", FrontProxyDomain, pki.Leaf{CommonName: frontProxyName, Client: true}},
		{AdminSecret, ClientDomain, pki.Leaf{
			CommonName: "kubernetes-admin", Organizations: []string{"system:masters"}, Client: true,
		}},
	}
	if cluster.ExternalEtcd() {
		return leaves
	}
	domain := MembersDomain(cluster)
	members := []string{"*." + domain, "*." + domain + ".cluster.local", domain}
	return append(leaves,
		Certificate{"etcd-peer", PeerDomain, pki.Leaf{CommonName: "etcd-peer", DNSNames: members, Server: true, Client: true}},
		Certificate{"etcd-server", EtcdClientDomain, pki.Leaf{CommonName: "etcd-server", DNSNames: members, Server: true, Client: true}},
		Certificate{"etcd-client", EtcdClientDomain, pki.Leaf{CommonName: "kube-apiserver", Client: true}},
		Certificate{OperatorEtcdSecret, EtcdClientDomain, pki.Leaf{CommonName: ManagedBy, Client: true}},
	)
}

func servingLeaf(cluster *v1alpha1.ApiServerCluster, addresses []string) pki.Leaf {
	service := cluster.Name + "." + cluster.Namespace
	leaf := pki.Leaf{CommonName: "kube-apiserver", Server: true}
	names := []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
		cluster.Name, service, service + ".svc", service + ".svc.cluster.local", "*." + MembersDomain(cluster), "127.0.0.1", "::1",
	}
	for _, name := range slices.Concat(names, cluster.Spec.ExtraSANs, addresses) {
		if address := net.ParseIP(name); address != nil {
			leaf.Addresses = append(leaf.Addresses, address)
		} else {
			leaf.DNSNames = append(leaf.DNSNames, name)
		}
	}
	slices.Sort(leaf.DNSNames)
	leaf.DNSNames = slices.Compact(leaf.DNSNames)
	slices.SortFunc(leaf.Addresses, func(a, b net.IP) int { return slices.Compare(a, b) })
	leaf.Addresses = slices.CompactFunc(leaf.Addresses, net.IP.Equal)
	return leaf
}

// AuthoritySecret returns the Secret of an authority. No pod mounts its key.
func AuthoritySecret(cluster *v1alpha1.ApiServerCluster, domain string, pair pki.Pair) *corev1.Secret {
	return secret(cluster, domain, corev1.SecretTypeTLS, map[string][]byte{
		corev1.TLSCertKey: pair.Certificate, corev1.TLSPrivateKeyKey: pair.Key,
	})
}

// LeafSecret returns the Secret of a leaf with the certificate of its authority.
func LeafSecret(cluster *v1alpha1.ApiServerCluster, name string, pair pki.Pair, authority []byte) *corev1.Secret {
	return secret(cluster, name, corev1.SecretTypeTLS, map[string][]byte{
		corev1.TLSCertKey: pair.Certificate, corev1.TLSPrivateKeyKey: pair.Key, AuthorityKey: authority,
	})
}

// ServiceAccountKeys returns the Secret with the signing key of service-account tokens.
func ServiceAccountKeys(cluster *v1alpha1.ApiServerCluster, pair pki.Pair) *corev1.Secret {
	return secret(cluster, ServiceAccountSecret, corev1.SecretTypeOpaque, map[string][]byte{
		ServiceAccountPublicKey: pair.Certificate, ServiceAccountPrivateKey: pair.Key,
	})
}

// Kubeconfig returns the Secret with the kubeconfig of the cluster administrator.
func Kubeconfig(
	cluster *v1alpha1.ApiServerCluster, endpoint string, authority []byte, admin pki.Pair,
) (*corev1.Secret, error) {
	name := cluster.Name
	text, err := yaml.Marshal(clientcmd.Config{
		APIVersion: "v1", Kind: "Config", CurrentContext: name,
		Clusters: []clientcmd.NamedCluster{{
			Name: name, Cluster: clientcmd.Cluster{Server: endpoint, CertificateAuthorityData: authority},
		}},
		AuthInfos: []clientcmd.NamedAuthInfo{{
			Name: "admin", AuthInfo: clientcmd.AuthInfo{ClientCertificateData: admin.Certificate, ClientKeyData: admin.Key},
		}},
		Contexts: []clientcmd.NamedContext{{Name: name, Context: clientcmd.Context{Cluster: name, AuthInfo: "admin"}}},
	})
	if err != nil {
		return nil, err
	}
	return secret(cluster, "admin-kubeconfig", corev1.SecretTypeOpaque, map[string][]byte{KubeconfigKey: text}), nil
}

// SecretName returns the name of a Secret of a cluster from its suffix.
func SecretName(cluster *v1alpha1.ApiServerCluster, name string) string {
	return cluster.Name + "-" + name
}

func secret(
	cluster *v1alpha1.ApiServerCluster, name string, kind corev1.SecretType, data map[string][]byte,
) *corev1.Secret {
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: SecretName(cluster, name), Namespace: cluster.Namespace, Labels: Labels(cluster)},
		Type:       kind, Data: data,
	}
}
