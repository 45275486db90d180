package authentication

import (
	"bytes"
	"crypto/x509"
	"fmt"
	"os"
	"slices"
	"sync/atomic"

	"k8s.io/client-go/util/cert"
)

// Authority is a changing set of certificate authorities: the content of a file, which can be reloaded, or what was last
// passed to Set.
type Authority struct {
	file    string // empty: set by Set alone
	current atomic.Pointer[bundle]
}

// bundle is one version of the set. Versions are compared by address.
type bundle struct {
	pem          []byte
	pool         *x509.CertPool
	certificates []*x509.Certificate // in pool
}

// NewAuthority reads a file of PEM certificates.
func NewAuthority(file string) (*Authority, error) {
	a := &Authority{file: file}
	if err := a.Reload(); err != nil {
		return nil, err
	}
	return a, nil
}

// NewEmptyAuthority returns an authority without certificates, until Set.
func NewEmptyAuthority() *Authority {
	a := &Authority{}
	a.current.Store(&bundle{pool: x509.NewCertPool()})
	return a
}

// Files implements serving.Reloadable.
func (a *Authority) Files() []string { return []string{a.file} }

// Reload implements serving.Reloadable. On an error the current authorities stay in use.
func (a *Authority) Reload() error {
	pem, err := os.ReadFile(a.file)
	if err != nil {
		return fmt.Errorf("read certificate authorities: %w", err)
	}
	if err := a.Set(pem); err != nil {
		return fmt.Errorf("read certificate authorities from %s: %w", a.file, err)
	}
	return nil
}

// Set replaces the authorities by PEM certificates. On an error the current ones stay in use.
func (a *Authority) Set(pem []byte) error {
	if now := a.current.Load(); now != nil && bytes.Equal(now.pem, pem) {
		return nil
	}
	certificates, err := cert.ParseCertsPEM(pem)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	for _, certificate := range certificates {
		pool.AddCert(certificate)
	}
	a.current.Store(&bundle{pem: pem, pool: pool, certificates: certificates})
	return nil
}

// isEmpty reports whether there are no authorities: certificates can be neither accepted nor rejected.
func (b *bundle) isEmpty() bool { return len(b.certificates) == 0 }

// PEM returns the current authorities.
func (a *Authority) PEM() []byte { return a.current.Load().pem }

// Certificates returns the current authorities, the same slice until a reload. The caller must not modify it.
func (a *Authority) Certificates() []*x509.Certificate { return a.current.Load().certificates }

// Overlaps reports whether a certificate is among the current authorities of both.
func (a *Authority) Overlaps(other *Authority) bool {
	return slices.ContainsFunc(a.Certificates(), func(certificate *x509.Certificate) bool {
		return slices.ContainsFunc(other.Certificates(), certificate.Equal)
	})
}
