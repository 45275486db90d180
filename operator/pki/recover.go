package pki

import (
	"crypto"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Recover returns the bundle of an authority whose key is lost, from the PEM certificates that are still trusted, the
// signer's first. Its leaves stay valid. next signs new leaves, without a cross-signed certificate.
func Recover(trusted []byte, next Authority) (Bundle, error) {
	certificates, err := cert.ParseCertsPEM(trusted)
	if err != nil {
		return Bundle{}, fmt.Errorf("parsing the trusted certificates: %w", err)
	}
	b := Bundle{Next: &next}
	for i, certificate := range certificates {
		encoded := encode(certificate.Raw)
		switch {
		case i == 0:
			b.Signer = Authority{Pair: Pair{Certificate: encoded}, certificate: certificate}
		case !certificate.Equal(next.certificate):
			b.Previous = append(b.Previous, encoded...)
		}
	}
	return b, nil
}

// SignerLost reports whether the key of the signer is lost. Next is its successor.
func (b Bundle) SignerLost() bool { return b.Signer.signer == nil && b.Next != nil }

// issuer returns the authority that signs new leaves.
func (b Bundle) issuer() Authority {
	if b.SignerLost() {
		return *b.Next
	}
	return b.Signer
}

// Evaluate returns why a leaf must be reissued, or "". While the key of the signer is lost, its leaves are kept until
// they are due, because not every client trusts the successor yet.
func (b Bundle) Evaluate(pair Pair, leaf Leaf, now time.Time) string {
	reason := b.Signer.Evaluate(pair, leaf, now)
	if reason == "" || !b.SignerLost() {
		return reason
	}
	return b.Next.Evaluate(pair, leaf, now)
}

// Signed reports whether a leaf is signed by the authority that signs at present.
func (b Bundle) Signed(pair Pair) bool {
	return b.Signer.Signed(pair) || b.SignerLost() && b.Next.Signed(pair)
}

// Contains reports whether the authority's certificate is among PEM certificates.
func (a Authority) Contains(certificates []byte) bool {
	all, err := cert.ParseCertsPEM(certificates)
	return err == nil && slices.ContainsFunc(all, a.certificate.Equal)
}

// Verifies reports whether one of the PEM certificates in authorities signed a leaf.
func Verifies(authorities []byte, pair Pair) bool {
	leaf, err := cert.ParseCertsPEM(pair.Certificate)
	if err != nil {
		return false
	}
	all, err := cert.ParseCertsPEM(authorities)
	return err == nil && slices.ContainsFunc(all, func(a *x509.Certificate) bool {
		return leaf[0].CheckSignatureFrom(a) == nil
	})
}

// Select returns the PEM certificates whose common name is accepted.
func Select(certificates []byte, accept func(commonName string) bool) []byte {
	all, err := cert.ParseCertsPEM(certificates)
	if err != nil {
		return nil
	}
	var out []byte
	for _, certificate := range all {
		if accept(certificate.Subject.CommonName) {
			out = append(out, encode(certificate.Raw)...)
		}
	}
	return out
}

// Check returns why API servers cannot use the keys, or nil.
func (k Keys) Check() error {
	if _, err := keyutil.ParsePrivateKeyPEM(k.Signer.Key); err != nil {
		return errors.New(signingKey + " is not a PEM-encoded private key")
	}
	public, err := keyutil.ParsePublicKeysPEM(k.Verifying())
	if err != nil {
		return errors.New(verifyingKey + " has no PEM-encoded public key")
	}
	private, err := keyutil.ParsePublicKeysPEM(k.Signer.Key)
	if err != nil {
		return nil // of a type from which the public key is not derived
	}
	matches := slices.ContainsFunc(public, func(key any) bool {
		own, ok := private[0].(interface{ Equal(crypto.PublicKey) bool })
		return ok && own.Equal(key)
	})
	if !matches {
		return errors.New(signingKey + " does not match a key in " + verifyingKey)
	}
	return nil
}
