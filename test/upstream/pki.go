package upstream

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"
)

// PKI contains the certificates and keys of API servers and their administrator, in one directory.
type PKI struct {
	directory string

	servingAuthority []byte
	clients          *authority
	adminCertificate []byte
	adminKey         []byte
}

// NewPKI creates the authorities, the serving certificate for 127.0.0.1, localhost and the given addresses, the
// administrator's client certificate (group system:masters), and the key of service-account tokens.
func NewPKI(directory string, addresses ...net.IP) (*PKI, error) {
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return nil, err
	}
	p := &PKI{directory: directory}
	if err := p.fill(addresses); err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	return p, nil
}

func (p *PKI) fill(addresses []net.IP) error {
	serving, err := newAuthority("serving-ca")
	if err != nil {
		return err
	}
	client, err := newAuthority("client-ca")
	if err != nil {
		return err
	}
	servingCertificate, servingKey, err := serving.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		IPAddresses: append(addresses, net.IPv4(127, 0, 0, 1)),
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	if err != nil {
		return err
	}
	p.servingAuthority, p.clients = serving.pem, client
	p.adminCertificate, p.adminKey, err = p.client("admin", "system:masters")
	if err != nil {
		return err
	}
	clientAuthorityKey, err := encodeKey(client.key)
	if err != nil {
		return err
	}
	_, accountKey, err := newKey()
	if err != nil {
		return err
	}
	return p.write(map[string][]byte{
		"serving.crt": servingCertificate, "serving.key": servingKey, "client-ca.crt": client.pem, "accounts.key": accountKey,
		"serving-ca.crt": serving.pem, "client-ca.key": clientAuthorityKey,
	})
}

func (p *PKI) write(files map[string][]byte) error {
	for name, content := range files {
		if err := os.WriteFile(p.file(name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

func (p *PKI) file(name string) string { return filepath.Join(p.directory, name) }

// Flags returns the flags of an API server that refer to the files of the PKI.
func (p *PKI) Flags() []string {
	return []string{
		"--tls-cert-file=" + p.file("serving.crt"),
		"--tls-private-key-file=" + p.file("serving.key"),
		"--client-ca-file=" + p.file("client-ca.crt"),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + p.file("accounts.key"),
		"--service-account-signing-key-file=" + p.file("accounts.key"),
	}
}

// ServingFiles returns the files of the serving certificate, of its key, and of the authority of client certificates.
func (p *PKI) ServingFiles() (certificate, key, clients string) {
	return p.file("serving.crt"), p.file("serving.key"), p.file("client-ca.crt")
}

// Admin returns the administrator's client configuration for an API server on a port.
func (p *PKI) Admin(port int) *rest.Config {
	return &rest.Config{
		Host: fmt.Sprintf("https://127.0.0.1:%d", port),
		TLSClientConfig: rest.TLSClientConfig{
			CAData: p.servingAuthority, CertData: p.adminCertificate, KeyData: p.adminKey,
		},
	}
}

// client issues a client certificate.
func (p *PKI) client(user string, groups ...string) (certificate, key []byte, err error) {
	return p.clients.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// As returns a client configuration for another user of a server, with a new client certificate.
func (p *PKI) As(server *rest.Config, user string, groups ...string) (*rest.Config, error) {
	certificate, key, err := p.client(user, groups...)
	if err != nil {
		return nil, err
	}
	other := rest.AnonymousClientConfig(server)
	other.CertData, other.KeyData = certificate, key
	return other, nil
}

type authority struct {
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pem         []byte
}

func newAuthority(name string) (*authority, error) {
	key, _, err := newKey()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name},
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IsCA: true, BasicConstraintsValid: true,
	}
	valid(template)
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, err
	}
	return &authority{certificate: certificate, key: key, pem: encode("CERTIFICATE", der)}, nil
}

func (a *authority) issue(template *x509.Certificate) (certificate, private []byte, err error) {
	key, private, err := newKey()
	if err != nil {
		return nil, nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, err
	}
	template.SerialNumber = serial
	template.KeyUsage = x509.KeyUsageDigitalSignature
	valid(template)
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, nil, err
	}
	return encode("CERTIFICATE", der), private, nil
}

// valid sets the validity of a certificate to one day, beginning an hour ago in case a clock is set during the test.
func valid(template *x509.Certificate) {
	now := time.Now()
	template.NotBefore, template.NotAfter = now.Add(-time.Hour), now.Add(24*time.Hour)
}

func newKey() (*ecdsa.PrivateKey, []byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	private, err := encodeKey(key)
	return key, private, err
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, err
	}
	return encode("EC PRIVATE KEY", der), nil
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

// WriteFrontProxy creates the client certificate of a front proxy. It returns the flags of an API server that uses the
// certificate for extension API servers, and accepts it itself.
func (p *PKI) WriteFrontProxy() ([]string, error) {
	const user = "front-proxy-client"
	certificate, key, err := p.client(user)
	if err != nil {
		return nil, err
	}
	if err := p.write(map[string][]byte{"front-proxy.crt": certificate, "front-proxy.key": key}); err != nil {
		return nil, err
	}
	return []string{
		"--proxy-client-cert-file=" + p.file("front-proxy.crt"), "--proxy-client-key-file=" + p.file("front-proxy.key"),
		"--requestheader-client-ca-file=" + p.file("client-ca.crt"), "--requestheader-allowed-names=" + user,
		"--requestheader-username-headers=X-Remote-User", "--requestheader-uid-headers=X-Remote-Uid",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
	}, nil
}
