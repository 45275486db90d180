package aggregator

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"sync/atomic"
)

// Certificate is the client certificate, read from files, that identifies this server to extension API servers as
// their front proxy (--proxy-client-cert-file).
type Certificate struct {
	certFile, keyFile string
	loaded            atomic.Pointer[pair]
	// changed is called after a different certificate has been loaded.
	changed func()
}

// pair is a certificate with the content of its files, by which Reload recognizes a change.
type pair struct {
	certPEM, keyPEM []byte
	certificate     tls.Certificate
}

// NewCertificate returns the certificate in two files. It fails if they cannot be read.
func NewCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, changed: func() {}}
	return c, c.Reload()
}

// Files returns the paths of the two files.
func (c *Certificate) Files() []string { return []string{c.certFile, c.keyFile} }

// Reload reads the files again. If they have changed, requests that begin afterwards use new connections. After an
// error, the former certificate stays in use.
func (c *Certificate) Reload() error {
	certPEM, err := os.ReadFile(c.certFile)
	if err != nil {
		return fmt.Errorf("--proxy-client-cert-file: %w", err)
	}
	keyPEM, err := os.ReadFile(c.keyFile)
	if err != nil {
		return fmt.Errorf("--proxy-client-key-file: %w", err)
	}
	if before := c.loaded.Load(); before != nil && bytes.Equal(before.certPEM, certPEM) &&
		bytes.Equal(before.keyPEM, keyPEM) {
		return nil
	}
	parsed, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return fmt.Errorf("read the key pair of --proxy-client-cert-file: %w", err)
	}
	c.loaded.Store(&pair{certPEM, keyPEM, parsed})
	c.changed()
	return nil
}

// current returns the certificate for a new connection.
func (c *Certificate) current() *tls.Certificate { return &c.loaded.Load().certificate }
