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

// Recover returns the bundle of an authority whose private key is lost. trusted are the PEM certificates that are still
// trusted, the lost signer's first. Existing leaves stay valid. next signs new leaves immediately, although not every
// client trusts it yet, and without a cross-signed certificate, because only the lost key could sign that.
func Recover(trusted []byte, next Authority) (Bundle, error) {
	certificates, err := cert.ParseCertsPEM(trusted)
	if err != nil {
		return Bundle{}, fmt.Errorf("parse the trusted certificates: %w", err)
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

// SignerLost reports whether the key of the signer is lost. The bundle then has a successor.
func (b Bundle) SignerLost() bool { return b.Signer.signer == nil && b.Next != nil }

// issuer returns the authority that signs new leaves: the signer, or its successor if the signer's key is lost.
func (b Bundle) issuer() Authority {
	if b.SignerLost() {
		return *b.Next
	}
	return b.Signer
}

// Evaluate returns why a leaf has to be reissued, or "". While the key of the signer is lost, leaves of the signer are
// kept until they are due for renewal, because not every client trusts the successor yet.
func (b Bundle) Evaluate(pair Pair, leaf Leaf, now time.Time) string {
	reason := b.Signer.Evaluate(pair, leaf, now)
	if reason == "" || !b.SignerLost() {
		return reason
	}
	return b.Next.Evaluate(pair, leaf, now)
}

// Signed reports whether a leaf is signed by the signer, or by its successor if the signer's key is lost.
func (b Bundle) Signed(pair Pair) bool {
	return b.Signer.Signed(pair) || b.SignerLost() && b.Next.Signed(pair)
}

// Contains reports whether PEM certificates include the authority's certificate.
func (a Authority) Contains(certificates []byte) bool {
	all, err := cert.ParseCertsPEM(certificates)
	return err == nil && slices.ContainsFunc(all, a.certificate.Equal)
}

// Verifies reports whether any PEM certificate in authorities has signed the certificate in pair.
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

// Select returns those PEM certificates whose common name accept returns true for.
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
	private, err := keyutil.ParsePrivateKeyPEM(k.Signer.Key)
	if err != nil {
		return errors.New(signingKey + " is not a PEM-encoded private key")
	}
	public, err := keyutil.ParsePublicKeysPEM(k.Verifying())
	if err != nil {
		return errors.New(verifyingKey + " has no PEM-encoded public key")
	}
	signer, ok := private.(crypto.Signer)
	if !ok {
		return nil // the key has no public key that could be compared
	}
	matches := slices.ContainsFunc(public, func(key any) bool {
		derived, ok := signer.Public().(interface{ Equal(crypto.PublicKey) bool })
		return ok && derived.Equal(key)
	})
	if !matches {
		return errors.New(signingKey + " does not match a key in " + verifyingKey)
	}
	return nil
}
