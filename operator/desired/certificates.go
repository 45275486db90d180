package desired

import (
	"net"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientcmd "k8s.io/client-go/tools/clientcmd/api/v1"
	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/pki"
)

// Trust domains. Each has its own certificate authority, whose Secret is <cluster>-<domain>.
const (
	ServingDomain    = "serving-ca"
	ClientDomain     = "client-ca"
	FrontProxyDomain = "front-proxy-ca"
	PeerDomain       = "etcd-peer-ca"
	EtcdClientDomain = "etcd-client-ca" // for the members' client URLs: certificates of servers and clients
)

const frontProxyName = "front-proxy-client"

// AuthorityKey is the key of the PEM certificates with which clients verify a leaf, in the Secret of the leaf.
const AuthorityKey = "ca.crt"

// KubeconfigKey is the key of the kubeconfig in the Secret <cluster>-admin-kubeconfig.
const KubeconfigKey = "kubeconfig"

// ServiceAccountSecret is the suffix of the Secret with the keys of service-account tokens.
const ServiceAccountSecret = "service-account"

// Keys of the Secret ServiceAccountSecret that pods mount.
const (
	ServiceAccountPublicKey  = "service-account.pub"
	ServiceAccountPrivateKey = "service-account.key"
)

// Domains returns the trust domains of a cluster.
func Domains(cluster *v1alpha1.ApiServerCluster) []string {
	domains := []string{ServingDomain, ClientDomain}
	if !cluster.IsExtension() {
		domains = append(domains, FrontProxyDomain)
	}
	if !cluster.ExternalEtcd() {
		domains = append(domains, PeerDomain, EtcdClientDomain)
	}
	return domains
}

// UserAuthoritySecret returns the name of the Secret in which the user provides the authority of a trust domain, or ""
// if the operator creates the authority.
func UserAuthoritySecret(cluster *v1alpha1.ApiServerCluster, domain string) string {
	authorities := cluster.Spec.Certificates.Authorities
	switch ref := authorities.ServingSecretRef; {
	case domain == ServingDomain && ref != nil:
		return ref.Name
	case domain == ClientDomain && authorities.ClientSecretRef != nil:
		return authorities.ClientSecretRef.Name
	}
	return ""
}

// Certificate describes a leaf certificate, the trust domain whose authority signs it, and its Secret.
type Certificate struct {
	Secret string // suffix of the Secret's name
	Domain string
	Leaf   pki.Leaf
}

// Suffixes of the Secrets with the leaf certificates that the operator itself uses or observes.
const (
	ServingSecret      = "serving"
	EtcdServerSecret   = "etcd-server"
	AdminSecret        = "admin"
	OperatorEtcdSecret = "operator-etcd-client"
)

// Certificates returns all leaf certificates of a cluster. addresses are the host names and IP addresses of its
// Service, for which the serving certificate is valid.
func Certificates(cluster *v1alpha1.ApiServerCluster, addresses []string) []Certificate {
	leaves := append(clientLeaves(cluster, addresses), companionLeaves(cluster)...)
	if !cluster.ExternalEtcd() {
		leaves = append(leaves, etcdLeaves(cluster)...)
	}
	for i := range leaves {
		leaves[i].Leaf.Lifetime = cluster.CertificateLifetime()
	}
	return leaves
}

func clientLeaves(cluster *v1alpha1.ApiServerCluster, addresses []string) []Certificate {
	leaves := []Certificate{
		{ServingSecret, ServingDomain, servingLeaf(cluster, addresses)},
		{AdminSecret, ClientDomain, pki.Leaf{
			CommonName: "kubernetes-admin", Organizations: []string{"system:masters"}, Client: true,
		}},
	}
	if !cluster.IsExtension() {
		leaves = slices.Insert(leaves, 1, Certificate{
			"front-proxy-client", FrontProxyDomain, pki.Leaf{CommonName: frontProxyName, Client: true},
		})
	}
	return leaves
}

func etcdLeaves(cluster *v1alpha1.ApiServerCluster) []Certificate {
	domain := MembersDomain(cluster)
	members := []string{"*." + domain, "*." + domain + ".cluster.local", domain}
	return []Certificate{
		{"etcd-peer", PeerDomain, pki.Leaf{CommonName: "etcd-peer", DNSNames: members, Server: true, Client: true}},
		{
			EtcdServerSecret, EtcdClientDomain, pki.Leaf{
				CommonName: "etcd-server", DNSNames: members, Server: true, Client: true,
			},
		},
		{"etcd-client", EtcdClientDomain, pki.Leaf{CommonName: "kube-apiserver", Client: true}},
		{OperatorEtcdSecret, EtcdClientDomain, pki.Leaf{CommonName: ManagedBy, Client: true}},
	}
}

func servingLeaf(cluster *v1alpha1.ApiServerCluster, addresses []string) pki.Leaf {
	service := cluster.Name + "." + cluster.Namespace
	leaf := pki.Leaf{CommonName: "kube-apiserver", Server: true}
	names := []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
		cluster.Name, service, service + ".svc", service + ".svc.cluster.local", "*." + MembersDomain(cluster),
		"127.0.0.1", "::1",
	}
	for _, name := range slices.Concat(names, cluster.Spec.ExtraSANs, kubernetesAddresses(cluster), addresses) {
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

// AuthoritySecret returns the Secret of an authority. Pods mount only its trusted certificates, not its key.
func AuthoritySecret(cluster *v1alpha1.ApiServerCluster, domain string, bundle pki.Bundle) *corev1.Secret {
	return secret(cluster, domain, corev1.SecretTypeTLS, bundle.Data())
}

// LeafSecret returns the Secret of a leaf, with the certificates that verify the leaf.
func LeafSecret(cluster *v1alpha1.ApiServerCluster, name string, pair pki.Pair, trusted []byte) *corev1.Secret {
	return secret(cluster, name, corev1.SecretTypeTLS, map[string][]byte{
		corev1.TLSCertKey: pair.Certificate, corev1.TLSPrivateKeyKey: pair.Key, AuthorityKey: trusted,
	})
}

// ServiceAccountKeys returns the Secret with the keys that sign and verify service-account tokens.
func ServiceAccountKeys(cluster *v1alpha1.ApiServerCluster, keys pki.Keys, created time.Time) *corev1.Secret {
	keysSecret := secret(cluster, ServiceAccountSecret, corev1.SecretTypeOpaque, keys.Data())
	keysSecret.Annotations = map[string]string{KeyCreatedAnnotation: created.UTC().Format(time.RFC3339)}
	return keysSecret
}

// KeyCreated returns the creation time of the newest key in the Secret of ServiceAccountKeys.
func KeyCreated(keys *corev1.Secret) time.Time {
	created, err := time.Parse(time.RFC3339, keys.Annotations[KeyCreatedAnnotation])
	if err != nil { // an earlier release of the operator, which never replaced keys, has created the Secret
		return keys.CreationTimestamp.Time
	}
	return created
}

// AuthorityHash returns the hash of those authorities that etcd servers and clients read only when they start. The
// order of the certificates is irrelevant.
func AuthorityHash(cluster *v1alpha1.ApiServerCluster, bundles map[string]pki.Bundle) string {
	if cluster.ExternalEtcd() {
		return ""
	}
	return pki.SetFingerprint(bundles[PeerDomain].Trusted(), bundles[EtcdClientDomain].Trusted())
}

// Access describes the content of a kubeconfig.
type Access struct {
	Cluster       string // name of the cluster and of the context
	User          string
	Server        string // URL of the API server
	TLSServerName string
	Trusted       []byte // PEM certificates that verify the server; empty: the system of the client verifies it
	Credentials   pki.Pair
}

// Kubeconfig returns a kubeconfig with one context.
func Kubeconfig(a Access) ([]byte, error) {
	return yaml.Marshal(clientcmd.Config{
		APIVersion: "v1", Kind: "Config", CurrentContext: a.Cluster,
		Clusters: []clientcmd.NamedCluster{{Name: a.Cluster, Cluster: clientcmd.Cluster{
			Server: a.Server, TLSServerName: a.TLSServerName, CertificateAuthorityData: a.Trusted,
		}}},
		AuthInfos: []clientcmd.NamedAuthInfo{{Name: a.User, AuthInfo: clientcmd.AuthInfo{
			ClientCertificateData: a.Credentials.Certificate, ClientKeyData: a.Credentials.Key,
		}}},
		Contexts: []clientcmd.NamedContext{{
			Name: a.Cluster, Context: clientcmd.Context{Cluster: a.Cluster, AuthInfo: a.User},
		}},
	})
}

// AdminKubeconfig returns the Secret with the kubeconfig of the cluster's administrator.
func AdminKubeconfig(
	cluster *v1alpha1.ApiServerCluster, endpoint string, trusted []byte, admin pki.Pair,
) (*corev1.Secret, error) {
	text, err := Kubeconfig(Access{
		Cluster: cluster.Name, User: "admin", Server: endpoint, Trusted: trusted, Credentials: admin,
	})
	if err != nil {
		return nil, err
	}
	return secret(cluster, "admin-kubeconfig", corev1.SecretTypeOpaque, map[string][]byte{KubeconfigKey: text}), nil
}

// SecretName returns the name of a cluster's Secret with the given suffix.
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
