package aggregator

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"os"
	"sync/atomic"
)

// Certificate is the client certificate that identifies this server to others as their front proxy, read from files.
type Certificate struct {
	certFile, keyFile string
	loaded            atomic.Pointer[pair]
	changed           func()
}

type pair struct {
	certPEM, keyPEM []byte
	certificate     tls.Certificate
}

// NewCertificate reads the files.
func NewCertificate(certFile, keyFile string) (*Certificate, error) {
	c := &Certificate{certFile: certFile, keyFile: keyFile, changed: func() {}}
	return c, c.Reload()
}

// Files returns the paths of the files.
func (c *Certificate) Files() []string { return []string{c.certFile, c.keyFile} }

// Reload reads the files again. Requests that begin afterwards use new connections if they have changed.
func (c *Certificate) Reload() error {
	certPEM, err := os.ReadFile(c.certFile)
	if err != nil {
		return fmt.Errorf("--proxy-client-cert-file: %w", err)
	}
	keyPEM, err := os.ReadFile(c.keyFile)
	if err != nil {
		return fmt.Errorf("--proxy-client-key-file: %w", err)
	}
	if before := c.loaded.Load(); before != nil && bytes.Equal(before.certPEM, certPEM) && bytes.Equal(before.keyPEM, keyPEM) {
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

func (c *Certificate) current() *tls.Certificate { return &c.loaded.Load().certificate }
