package upstream

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func newPKI(t *testing.T) *PKI {
	t.Helper()
	pki, err := NewPKI(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	return pki
}

// TestAuthority checks the certificates of an authority: their users, names and usages.
func TestAuthority(t *testing.T) {
	const service = "extension.default.svc"
	authority, err := NewAuthority("authority")
	if err != nil {
		t.Fatal(err)
	}
	client, clientKey, err := authority.Client("jane", "team")
	if err != nil {
		t.Fatal(err)
	}
	server, serverKey, err := authority.Server(service)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		certificate, key []byte
		subject, host    string
		usage            x509.ExtKeyUsage
	}{
		"client":            {client, clientKey, "CN=jane,O=team", "", x509.ExtKeyUsageClientAuth},
		"server":            {server, serverKey, "CN=" + service, service, x509.ExtKeyUsageServerAuth},
		"server by address": {server, serverKey, "CN=" + service, "127.0.0.1", x509.ExtKeyUsageServerAuth},
	} {
		pair, err := tls.X509KeyPair(test.certificate, test.key)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(authority.PEM())
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{
			Roots: pool, DNSName: test.host, KeyUsages: []x509.ExtKeyUsage{test.usage},
		}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if subject := pair.Leaf.Subject.String(); subject != test.subject {
			t.Errorf("%s: the certificate is for %s, want %s", name, subject, test.subject)
		}
	}
}

// TestFrontProxy checks that an API server with the flags of WriteFrontProxy accepts the client certificate that
// WriteFrontProxy creates.
func TestFrontProxy(t *testing.T) {
	pki := newPKI(t)
	lines, err := pki.WriteFrontProxy()
	if err != nil {
		t.Fatal(err)
	}
	flags := map[string]string{}
	for _, line := range lines {
		name, value, _ := strings.Cut(line, "=")
		flags[name] = value
	}
	pair, err := tls.LoadX509KeyPair(flags["--proxy-client-cert-file"], flags["--proxy-client-key-file"])
	if err != nil {
		t.Fatal(err)
	}
	authority, err := os.ReadFile(flags["--requestheader-client-ca-file"])
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	if _, err := pair.Leaf.Verify(x509.VerifyOptions{
		Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}); err != nil {
		t.Error(err)
	}
	if name := pair.Leaf.Subject.CommonName; name != flags["--requestheader-allowed-names"] {
		t.Errorf("the certificate is for %s, and the flags allow %s", name, flags["--requestheader-allowed-names"])
	}
}
