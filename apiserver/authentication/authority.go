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

// Authority is a set of certificate authorities that can change: the content of a file, which Reload reads, or the
// argument of the last call of Set.
type Authority struct {
	// file is empty if only Set changes the authorities.
	file    string
	current atomic.Pointer[bundle]
}

// bundle is one version of the set. Bundles are compared by address.
type bundle struct {
	pem  []byte
	pool *x509.CertPool
	// certificates are the certificates in pool.
	certificates []*x509.Certificate
}

// NewAuthority returns an authority with the PEM certificates of a file.
func NewAuthority(file string) (*Authority, error) {
	a := &Authority{file: file}
	if err := a.Reload(); err != nil {
		return nil, err
	}
	return a, nil
}

// NewEmptyAuthority returns an authority that has no certificates until Set is called.
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

// Set replaces the authorities with PEM certificates. On an error the current authorities stay in use.
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

// isEmpty reports whether there are no authorities. Certificates are then neither accepted nor rejected.
func (b *bundle) isEmpty() bool { return len(b.certificates) == 0 }

// PEM returns the current authorities in PEM.
func (a *Authority) PEM() []byte { return a.current.Load().pem }

// Certificates returns the current authorities. It returns the same slice until they change. The caller must not modify
// the slice.
func (a *Authority) Certificates() []*x509.Certificate { return a.current.Load().certificates }

// Overlaps reports whether both authorities currently have a certificate in common.
func (a *Authority) Overlaps(other *Authority) bool {
	return slices.ContainsFunc(a.Certificates(), func(certificate *x509.Certificate) bool {
		return slices.ContainsFunc(other.Certificates(), certificate.Equal)
	})
}
