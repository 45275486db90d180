package authentication

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"os"
	"sync/atomic"

	"k8s.io/client-go/util/cert"
)

// Authority is a file of certificate authorities that may change while the server runs.
type Authority struct {
	file    string
	current atomic.Pointer[bundle]
}

// bundle is the file's content at one time. Its address tells it from earlier and later ones.
type bundle struct {
	pem          []byte
	pool         *x509.CertPool
	certificates []*x509.Certificate // the pool's
}

// NewAuthority reads a file of PEM certificates.
func NewAuthority(file string) (*Authority, error) {
	a := &Authority{file: file}
	if err := a.Reload(); err != nil {
		return nil, err
	}
	return a, nil
}

// Files names what to watch.
func (a *Authority) Files() []string { return []string{a.file} }

// Reload reads the file again. On an error the authorities stay as they were.
func (a *Authority) Reload() error {
	pem, err := os.ReadFile(a.file)
	if err != nil {
		return fmt.Errorf("reading certificate authorities: %w", err)
	}
	if now := a.current.Load(); now != nil && bytes.Equal(now.pem, pem) {
		return nil
	}
	certificates, err := cert.ParseCertsPEM(pem)
	if err != nil {
		return fmt.Errorf("reading certificate authorities from %s: %w", a.file, err)
	}
	pool := x509.NewCertPool()
	for _, certificate := range certificates {
		pool.AddCert(certificate)
	}
	a.current.Store(&bundle{pem: pem, pool: pool, certificates: certificates})
	return nil
}

// PEM returns the authorities as last read, for publishing.
func (a *Authority) PEM() []byte { return a.current.Load().pem }

// Certificates returns the authorities as last read: the same ones until the file has changed. The caller must not
// change the slice.
func (a *Authority) Certificates() []*x509.Certificate { return a.current.Load().certificates }
