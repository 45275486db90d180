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

// Probe describes how to read the credentials that running replicas use. In a TLS handshake, a server presents its
// certificate and lists the client authorities that it accepts. API servers publish the keys that verify tokens at
// /openid/v1/jwks.
type Probe struct {
	Serving *tls.Config // connection to API servers, with a client certificate that may read the token keys
	Etcd    *tls.Config // connection to etcd members; nil: the cluster has none
	Tokens  bool        // API servers issue service-account tokens, so they have token keys
}

// Credentials are the credentials that one replica uses.
type Credentials struct {
	Err                 error    // why the other fields are unknown
	Serving             string   // fingerprint of the certificate chain of the API server
	Authorities         [][]byte // DER subjects of the authorities of API clients and front proxies
	EtcdServing         string   // fingerprint of the certificate chain at the member's client URL
	EtcdAuthorities     [][]byte // DER subjects of the authorities of etcd clients
	ServiceAccountKeyID []string // IDs of the keys that verify service-account tokens, in order
}

// Credentials probes all pods concurrently. The result has the order of s.Pods.
func (s *State) Credentials(ctx context.Context, probe Probe) []Credentials {
	all := make([]Credentials, len(s.Pods))
	parallel.Each(len(s.Pods), func(i int) { all[i] = probe.credentials(ctx, &s.Pods[i]) })
	return all
}

// credentials probes one pod. Connections, handshakes and responses together take at most versionTimeout.
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

// server requests the token keys of an API server, or its health if it issues no tokens. Any response contains the
// certificate that the API server uses.
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
		return fmt.Errorf("request the token keys: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if !p.Tokens {
		c.Serving = fingerprint(response.TLS.PeerCertificates)
		return nil
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("request the token keys: %s", response.Status)
	}
	var set struct {
		Keys []struct {
			ID string `json:"kid"`
		} `json:"keys"`
	}
	if err := json.NewDecoder(io.LimitReader(response.Body, versionLimit)).Decode(&set); err != nil {
		return fmt.Errorf("read the token keys: %w", err)
	}
	for _, key := range set.Keys {
		c.ServiceAccountKeyID = append(c.ServiceAccountKeyID, key.ID)
	}
	c.Serving = fingerprint(response.TLS.PeerCertificates)
	return nil
}

// member connects to the client URL of an etcd member without sending a request.
func (p Probe) member(ctx context.Context, pod *corev1.Pod, c *Credentials) error {
	dialer := tls.Dialer{Config: listening(p.Etcd, &c.EtcdAuthorities)}
	connection, err := dialer.DialContext(ctx, "tcp", address(pod, desired.ClientPort))
	if err != nil {
		return fmt.Errorf("connect to the etcd member: %w", err)
	}
	defer func() { _ = connection.Close() }()
	secure, ok := connection.(*tls.Conn)
	if !ok {
		return fmt.Errorf("the connection is a %T", connection)
	}
	c.EtcdServing = fingerprint(secure.ConnectionState().PeerCertificates)
	return nil
}

// listening returns a copy of a TLS configuration that also stores the authorities in the server's certificate request
// in names.
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

// fingerprint returns the hash of a chain of certificates.
func fingerprint(chain []*x509.Certificate) string {
	sum := sha256.New()
	for _, certificate := range chain {
		sum.Write(certificate.Raw)
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// ChainFingerprint returns the fingerprint of a certificate and its intermediates, in the notation of Credentials.
func ChainFingerprint(chain []*x509.Certificate) string { return fingerprint(chain) }
