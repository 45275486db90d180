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
	domains := []string{ServingDomain, ClientDomain}
	if !cluster.IsExtension() {
		domains = append(domains, FrontProxyDomain)
	}
	if !cluster.ExternalEtcd() {
		domains = append(domains, PeerDomain, EtcdClientDomain)
	}
	return domains
}

// UserAuthoritySecret returns the name of the Secret with the user's authority of a trust domain, or "".
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

// Certificate is a leaf certificate with its trust domain and Secret.
type Certificate struct {
	Secret string // suffix of the name of the Secret
	Domain string
	Leaf   pki.Leaf
}

// Suffixes of the Secrets of leaves that the operator uses or observes.
const (
	ServingSecret      = "serving"
	EtcdServerSecret   = "etcd-server"
	AdminSecret        = "admin"
	OperatorEtcdSecret = "operator-etcd-client"
)

// Certificates returns the leaf certificates of a cluster. Addresses are the host names and IP addresses of the
// Service.
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
		{EtcdServerSecret, EtcdClientDomain, pki.Leaf{CommonName: "etcd-server", DNSNames: members, Server: true, Client: true}},
		{"etcd-client", EtcdClientDomain, pki.Leaf{CommonName: "kube-apiserver", Client: true}},
		{OperatorEtcdSecret, EtcdClientDomain, pki.Leaf{CommonName: ManagedBy, Client: true}},
	}
}

func servingLeaf(cluster *v1alpha1.ApiServerCluster, addresses []string) pki.Leaf {
	service := cluster.Name + "." + cluster.Namespace
	leaf := pki.Leaf{CommonName: "kube-apiserver", Server: true}
	names := []string{
		"kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local", "localhost",
		cluster.Name, service, service + ".svc", service + ".svc.cluster.local", "*." + MembersDomain(cluster), "127.0.0.1", "::1",
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

// AuthoritySecret returns the Secret of an authority. Pods mount the trusted certificates, and no key.
func AuthoritySecret(cluster *v1alpha1.ApiServerCluster, domain string, bundle pki.Bundle) *corev1.Secret {
	return secret(cluster, domain, corev1.SecretTypeTLS, bundle.Data())
}

// LeafSecret returns the Secret of a leaf with the certificates that verify it.
func LeafSecret(cluster *v1alpha1.ApiServerCluster, name string, pair pki.Pair, trusted []byte) *corev1.Secret {
	return secret(cluster, name, corev1.SecretTypeTLS, map[string][]byte{
		corev1.TLSCertKey: pair.Certificate, corev1.TLSPrivateKeyKey: pair.Key, AuthorityKey: trusted,
	})
}

// ServiceAccountKeys returns the Secret with the signing key of service-account tokens and the public keys that verify
// them.
func ServiceAccountKeys(cluster *v1alpha1.ApiServerCluster, keys pki.Keys, created time.Time) *corev1.Secret {
	keysSecret := secret(cluster, ServiceAccountSecret, corev1.SecretTypeOpaque, keys.Data())
	keysSecret.Annotations = map[string]string{KeyCreatedAnnotation: created.UTC().Format(time.RFC3339)}
	return keysSecret
}

// KeyCreated returns when the newest key of a Secret of ServiceAccountKeys was created.
func KeyCreated(keys *corev1.Secret) time.Time {
	created, err := time.Parse(time.RFC3339, keys.Annotations[KeyCreatedAnnotation])
	if err != nil { // created by an earlier version of the operator, which never replaced keys
		return keys.CreationTimestamp.Time
	}
	return created
}

// AuthorityHash returns the hash of the certificates that etcd, as a member or a client, reads only at its start. Their
// order is irrelevant.
func AuthorityHash(cluster *v1alpha1.ApiServerCluster, bundles map[string]pki.Bundle) string {
	if cluster.ExternalEtcd() {
		return ""
	}
	return pki.SetFingerprint(bundles[PeerDomain].Trusted(), bundles[EtcdClientDomain].Trusted())
}

// Access describes a kubeconfig.
type Access struct {
	Cluster       string // name of the cluster and of the context
	User          string
	Server        string // URL
	TLSServerName string
	Trusted       []byte // PEM; empty: the certificates that the client's system trusts
	Credentials   pki.Pair
}

// Kubeconfig returns a kubeconfig.
func Kubeconfig(a Access) ([]byte, error) {
	return yaml.Marshal(clientcmd.Config{
		APIVersion: "v1", Kind: "Config", CurrentContext: a.Cluster,
		Clusters: []clientcmd.NamedCluster{{Name: a.Cluster, Cluster: clientcmd.Cluster{
			Server: a.Server, TLSServerName: a.TLSServerName, CertificateAuthorityData: a.Trusted,
		}}},
		AuthInfos: []clientcmd.NamedAuthInfo{{Name: a.User, AuthInfo: clientcmd.AuthInfo{
			ClientCertificateData: a.Credentials.Certificate, ClientKeyData: a.Credentials.Key,
		}}},
		Contexts: []clientcmd.NamedContext{{Name: a.Cluster, Context: clientcmd.Context{Cluster: a.Cluster, AuthInfo: a.User}}},
	})
}

// AdminKubeconfig returns the Secret with the kubeconfig of the cluster administrator.
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
