package observed

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/desired"
	"quorate.dev/operator/parallel"
)

// Probe reads which credentials the running replicas use. In TLS handshakes, servers present their certificate and
// list the authorities whose client certificates they accept. API servers publish the keys that verify tokens.
type Probe struct {
	Serving *tls.Config // for API servers, with a client certificate that may read the token keys
	Etcd    *tls.Config // for etcd members; nil: there are none
	Tokens  bool        // API servers issue service-account tokens
}

// Credentials are the credentials that a replica uses.
type Credentials struct {
	Err                 error    // why the others are unknown
	Serving             string   // fingerprint of the API server's certificate
	Authorities         [][]byte // names of the authorities of API clients and front proxies, DER
	EtcdServing         string   // fingerprint of the certificate of the member's client URL
	EtcdAuthorities     [][]byte // names of the authorities of etcd clients, DER
	ServiceAccountKeyID []string // IDs of the keys that verify service-account tokens, in order
}

// Credentials probes all pods. The result is in the order of s.Pods.
func (s *State) Credentials(ctx context.Context, probe Probe) []Credentials {
	all := make([]Credentials, len(s.Pods))
	parallel.Each(len(s.Pods), func(i int) { all[i] = probe.credentials(ctx, &s.Pods[i]) })
	return all
}

func (p Probe) credentials(ctx context.Context, pod *corev1.Pod) (c Credentials) {
	if pod.Status.PodIP == "" {
		return Credentials{Err: errNoAddress}
	}
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	if c.Err = p.server(ctx, pod, &c); c.Err == nil && p.Etcd != nil && RunsMember(pod) {
		c.Err = p.member(ctx, pod, &c)
	}
	return c
}

var errNoAddress = errors.New("it has no address yet")

func address(pod *corev1.Pod, port int) string {
	return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(port))
}

// server requests the keys of service-account tokens, or the health of API servers that issue none.
func (p Probe) server(ctx context.Context, pod *corev1.Pod, c *Credentials) error {
	transport := &http.Transport{TLSClientConfig: listening(p.Serving, &c.Authorities), ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	path := "/openid/v1/jwks"
	if !p.Tokens {
		path = "/livez"
	}
	url := "https://" + address(pod, desired.SecurePort) + path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return fmt.Errorf("requesting the token keys: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if !p.Tokens {
		c.Serving = fingerprint(response.TLS.PeerCertificates)
		return nil
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("requesting the token keys: %s", response.Status)
	}
	var set struct {
		Keys []struct {
			ID string `json:"kid"`
		} `json:"keys"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, versionLimit)).Decode(&set); err != nil {
		return fmt.Errorf("reading the token keys: %w", err)
	}
	for _, key := range set.Keys {
		c.ServiceAccountKeyID = append(c.ServiceAccountKeyID, key.ID)
	}
	c.Serving = fingerprint(response.TLS.PeerCertificates)
	return nil
}

func (p Probe) member(ctx context.Context, pod *corev1.Pod, c *Credentials) error {
	dialer := tls.Dialer{Config: listening(p.Etcd, &c.EtcdAuthorities)}
	connection, err := dialer.DialContext(ctx, "tcp", address(pod, desired.ClientPort))
	if err != nil {
		return fmt.Errorf("connecting to the etcd member: %w", err)
	}
	defer func() { _ = connection.Close() }()
	secure, ok := connection.(*tls.Conn)
	if !ok {
		return fmt.Errorf("the connection is a %T", connection)
	}
	c.EtcdServing = fingerprint(secure.ConnectionState().PeerCertificates)
	return nil
}

// listening returns a configuration that also stores the authority names from the server's certificate request.
func listening(config *tls.Config, names *[][]byte) *tls.Config {
	config = config.Clone()
	certificates := config.Certificates
	config.Certificates = nil
	config.GetClientCertificate = func(request *tls.CertificateRequestInfo) (*tls.Certificate, error) {
		*names = slices.Clone(request.AcceptableCAs)
		return &certificates[0], nil
	}
	return config
}

func fingerprint(chain []*x509.Certificate) string {
	sum := sha256.New()
	for _, certificate := range chain {
		sum.Write(certificate.Raw)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// ChainFingerprint returns the fingerprint of a certificate and its intermediate certificates, as in Credentials.
func ChainFingerprint(chain []*x509.Certificate) string { return fingerprint(chain) }
