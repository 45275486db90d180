package credentials

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/client-go/rest"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
)

// requestTimeout limits a request to the API servers of a cluster, and rewriteTimeout a request that rewrites stored
// objects.
const (
	requestTimeout = 5 * time.Second
	rewriteTimeout = time.Minute
)

// Set is the content of the Secrets of a cluster.
type Set struct {
	Bundles         map[string]pki.Bundle    // by trust domain
	UserAuthorities map[string]pki.Authority // valid authorities in Secrets of the user, by trust domain
	Leaves          map[string]pki.Pair      // by suffix of the Secret
	Keys            pki.Keys
	KeyCreated      time.Time
	Trusted         []byte // PEM certificates that verify the serving certificate; empty: a public authority's
	ServerName      string // host for which the operator verifies the serving certificate
}

// Hash returns the fingerprint of all certificates and keys that pods mount. It is public, as the value of an
// annotation of pods (see certificates.AnnotatePods), so that it covers certificates and public keys. A new private key
// always has a new certificate or public key.
func (s Set) Hash() string {
	var all [][]byte
	domains := []string{desired.ClientDomain, desired.FrontProxyDomain, desired.PeerDomain, desired.EtcdClientDomain}
	for _, domain := range domains {
		all = append(all, s.Bundles[domain].Trusted())
	}
	for _, name := range []string{
		"serving", "front-proxy-client", "etcd-peer", "etcd-server", "etcd-client", desired.KubeletClientSecret,
	} {
		all = append(all, s.Leaves[name].Certificate)
	}
	return pki.Fingerprint(append(all, s.Keys.Verifying())...)
}

// MountedHash returns the hash of all files that pods mount and reload.
func (s Set) MountedHash(cluster *v1alpha1.ApiServerCluster, configuration desired.Configuration) string {
	reloaded := configuration.ReloadHash(cluster)
	if reloaded == "" {
		return s.Hash()
	}
	return pki.Fingerprint([]byte(s.Hash()), []byte(reloaded))
}

// Roots returns the PEM certificates with which the operator verifies API servers. It includes the serving certificate
// itself, because a public authority that has issued it may be unknown to the operator's image.
func (s Set) Roots() []byte {
	return slices.Concat(s.Trusted, s.Leaves[desired.ServingSecret].Certificate)
}

// Hosted returns the configuration of a client for a ready API server of the cluster, with administrator permissions.
// The state must have a ready address. The client connects to one replica and not to the Service, because a Service may
// still select a replica that has just failed. It has no rate limit (QPS -1): a step sends a bounded number of
// requests.
func (s Set) Hosted(state *observed.State) *rest.Config {
	admin := s.Leaves[desired.AdminSecret]
	return &rest.Config{
		Host: "https://" + net.JoinHostPort(state.ReadyAddress(), strconv.Itoa(desired.SecurePort)),
		TLSClientConfig: rest.TLSClientConfig{
			ServerName: s.ServerName, CAData: s.Roots(), CertData: admin.Certificate, KeyData: admin.Key,
		},
		Timeout: requestTimeout, QPS: -1, WarningHandler: rest.NoWarnings{}, UserAgent: "quorate-operator",
	}
}

// Replica returns the configuration of a client of a ready replica that rewrites stored objects with administrator
// permissions, or nil if none is ready.
func (s Set) Replica(state *observed.State) *rest.Config {
	for i := range state.Pods {
		pod := &state.Pods[i]
		if !observed.Ready(pod) || pod.Status.PodIP == "" {
			continue
		}
		admin := s.Leaves[desired.AdminSecret]
		return &rest.Config{
			Host: "https://" + net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(desired.SecurePort)), QPS: -1,
			TLSClientConfig: rest.TLSClientConfig{
				ServerName: s.ServerName, CAData: s.Roots(), CertData: admin.Certificate, KeyData: admin.Key,
			},
			UserAgent: "quorate-operator", Timeout: rewriteTimeout,
		}
	}
	return nil
}

// Etcd returns the credentials with which the operator connects to the client ports of the members.
func (s Set) Etcd(cluster *v1alpha1.ApiServerCluster) etcd.Credentials {
	leaf := s.Leaves[desired.OperatorEtcdSecret]
	return etcd.Credentials{
		Authority:   s.Bundles[desired.EtcdClientDomain].Trusted(),
		Certificate: leaf.Certificate, Key: leaf.Key, ServerName: desired.MembersDomain(cluster),
	}
}

// Companions returns what companions need of the certificates. If a public authority has issued the serving
// certificate, companions trust the certificate itself, because their images may not contain that authority.
func (s Set) Companions() desired.CompanionCredentials {
	c := desired.CompanionCredentials{
		Trusted: s.Trusted, ServerName: s.ServerName,
		Clients: s.Bundles[desired.ClientDomain], Keys: s.Keys,
	}
	if len(c.Trusted) == 0 {
		c.Trusted = s.Roots()
	}
	return c
}

// Probe returns how to connect to replicas to read the credentials that they use. A replica of a cluster in mode
// Extension issues no tokens, and a replica of an external etcd has no member port. Probe fails if the client
// certificate of the operator is missing or does not match its key; the caller must then not conclude anything about
// the replicas.
func (s Set) Probe(cluster *v1alpha1.ApiServerCluster) (probe observed.Probe, err error) {
	probe.Tokens = !cluster.IsExtension()
	admin := s.Leaves[desired.AdminSecret]
	probe.Serving, err = clientConfig(s.Roots(), admin, s.ServerName)
	if err != nil || cluster.ExternalEtcd() {
		return probe, err
	}
	probe.Etcd, err = clientConfig(s.Bundles[desired.EtcdClientDomain].Trusted(),
		s.Leaves[desired.OperatorEtcdSecret], desired.MembersDomain(cluster))
	return probe, err
}

func clientConfig(trusted []byte, credentials pki.Pair, name string) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(credentials.Certificate, credentials.Key)
	if err != nil {
		return nil, fmt.Errorf("use the operator's client certificate: %w", err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(trusted)
	return &tls.Config{
		Certificates: []tls.Certificate{pair}, RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12,
	}, nil
}

// Lost returns the error that a Secret in use is missing or unusable and that a new one would do harm. Steps that apply
// the spec are skipped until the Secret is restored, or its replacement is permitted by an annotation. Encryption keys
// cannot be replaced: stored objects that are encrypted with lost keys stay unreadable, whatever the user permits.
func Lost(name, problem, consequence string) error {
	err := fmt.Errorf("secret %s %s, and %s: restore it", name, problem, consequence)
	if strings.HasSuffix(name, "-"+desired.EncryptionSecret) {
		return err
	}
	return fmt.Errorf("%w, or list it in the annotation %s to let the operator create a new one", err,
		v1alpha1.ReplaceSecretsAnnotation)
}
