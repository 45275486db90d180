// Package pki creates and evaluates certificates: authorities, the leaves that they sign, and service-account keys. Its
// functions are pure except for randomness: they read no clock and store nothing.
package pki

import (
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"slices"
	"strings"
	"time"

	"k8s.io/client-go/util/cert"
	"k8s.io/client-go/util/keyutil"
)

// Default lifetimes. Leaves are renewed, and authorities replaced, when a third of their lifetime remains.
const (
	AuthorityLifetime = 10 * 365 * 24 * time.Hour
	LeafLifetime      = 365 * 24 * time.Hour

	// backdate makes new certificates valid on machines with slow clocks.
	backdate = 5 * time.Minute
)

const authorityUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature

// Pair is a certificate and its private key, both PEM.
type Pair struct {
	Certificate []byte
	Key         []byte
}

// Authority signs leaves of one trust domain.
type Authority struct {
	Pair
	certificate *x509.Certificate
	signer      crypto.Signer
}

// Leaf describes a certificate to be signed.
type Leaf struct {
	CommonName    string
	Organizations []string
	DNSNames      []string
	Addresses     []net.IP
	Server        bool          // extended key usage serverAuth
	Client        bool          // extended key usage clientAuth
	Lifetime      time.Duration // 0: LeafLifetime
}

// NewAuthority creates a self-signed authority.
func NewAuthority(name string, lifetime time.Duration, now time.Time) (Authority, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Authority{}, fmt.Errorf("generating the key of authority %s: %w", name, err)
	}
	template, err := newTemplate(pkix.Name{CommonName: name}, now, lifetime)
	if err != nil {
		return Authority{}, err
	}
	template.IsCA = true
	template.KeyUsage = authorityUsage
	pair, err := sign(template, template, signer, signer)
	if err != nil {
		return Authority{}, err
	}
	return ParseAuthority(pair)
}

// ParseAuthority parses an authority. The key must match the certificate.
func ParseAuthority(pair Pair) (Authority, error) {
	certificate, signer, err := parse(pair)
	if err != nil {
		return Authority{}, err
	}
	if !certificate.IsCA {
		return Authority{}, fmt.Errorf("certificate %q is not a certificate authority", certificate.Subject.CommonName)
	}
	return Authority{Pair: pair, certificate: certificate, signer: signer}, nil
}

// ParseUserAuthority parses an authority that was not created by this package. It must be self-signed, because servers and
// clients trust its certificate alone, and valid.
func ParseUserAuthority(pair Pair, now time.Time) (Authority, error) {
	a, err := ParseAuthority(pair)
	if err != nil {
		return Authority{}, err
	}
	switch {
	case a.certificate.CheckSignatureFrom(a.certificate) != nil:
		return Authority{}, fmt.Errorf("authority %q is not self-signed", a.certificate.Subject.CommonName)
	case now.After(a.certificate.NotAfter):
		return Authority{}, fmt.Errorf("authority %q expired at %s",
			a.certificate.Subject.CommonName, a.certificate.NotAfter.UTC().Format(time.RFC3339))
	}
	a.Certificate = encode(a.certificate.Raw)
	return a, nil
}

// Equal reports whether two authorities have the same certificate.
func (a Authority) Equal(b Authority) bool { return a.certificate.Equal(b.certificate) }

// Expiry returns the expiry time of the authority's certificate.
func (a Authority) Expiry() time.Time { return a.certificate.NotAfter }

// Created returns the time at which the authority was created.
func (a Authority) Created() time.Time { return a.certificate.NotBefore.Add(backdate) }

// Renewal returns the time at which a third of the authority's lifetime remains.
func (a Authority) Renewal() time.Time { return renewal(a.certificate) }

// Signed reports whether the authority signed a leaf.
func (a Authority) Signed(pair Pair) bool {
	certificate, _, err := parse(pair)
	return err == nil && certificate.CheckSignatureFrom(a.certificate) == nil
}

// CrossSign returns a certificate of the successor's key that is signed by a: clients that trust only a accept the
// certificates of the successor, if it is sent together with them.
func (a Authority) CrossSign(successor Authority, now time.Time) ([]byte, error) {
	template, err := newTemplate(successor.certificate.Subject, now, a.certificate.NotAfter.Sub(now))
	if err != nil {
		return nil, err
	}
	template.IsCA, template.KeyUsage = true, authorityUsage
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, successor.signer.Public(), a.signer)
	if err != nil {
		return nil, fmt.Errorf("cross-signing authority %q: %w", successor.certificate.Subject.CommonName, err)
	}
	return encode(der), nil
}

// Issue creates a key and signs a leaf certificate for it. The leaf does not outlive the authority.
func (a Authority) Issue(leaf Leaf, now time.Time) (Pair, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generating the key of %s: %w", leaf.CommonName, err)
	}
	subject := pkix.Name{CommonName: leaf.CommonName, Organization: leaf.Organizations}
	template, err := newTemplate(subject, now, leaf.lifetime())
	if err != nil {
		return Pair{}, err
	}
	if template.NotAfter.After(a.certificate.NotAfter) {
		template.NotAfter = a.certificate.NotAfter
	}
	template.KeyUsage = x509.KeyUsageDigitalSignature
	template.ExtKeyUsage = leaf.usages()
	template.DNSNames, template.IPAddresses = leaf.DNSNames, leaf.Addresses
	return sign(template, a.certificate, signer, a.signer)
}

func (l Leaf) lifetime() time.Duration { return cmp.Or(l.Lifetime, LeafLifetime) }

func (l Leaf) usages() []x509.ExtKeyUsage {
	var usages []x509.ExtKeyUsage
	if l.Server {
		usages = append(usages, x509.ExtKeyUsageServerAuth)
	}
	if l.Client {
		usages = append(usages, x509.ExtKeyUsageClientAuth)
	}
	return usages
}

// NewServiceAccountKey creates the key pair of service-account tokens. Certificate contains the public key.
func NewServiceAccountKey() (Pair, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generating the service-account key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		return Pair{}, fmt.Errorf("encoding the service-account key: %w", err)
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(signer)
	if err != nil {
		return Pair{}, fmt.Errorf("encoding the service-account key: %w", err)
	}
	return Pair{Certificate: pem.EncodeToMemory(&pem.Block{Type: keyutil.PublicKeyBlockType, Bytes: public}), Key: key}, nil
}

// Fingerprint returns a short hash of certificates, for annotations.
func Fingerprint(certificates ...[]byte) string {
	sum := sha256.New()
	for _, certificate := range certificates {
		sum.Write(certificate)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// SetFingerprint returns a short hash of sets of PEM certificates. The order within a set is irrelevant.
func SetFingerprint(sets ...[]byte) string {
	var all [][]byte
	for _, set := range sets {
		var members []string
		for block, rest := pem.Decode(set); block != nil; block, rest = pem.Decode(rest) {
			members = append(members, string(block.Bytes))
		}
		slices.Sort(members)
		all = append(all, []byte(Fingerprint([]byte(strings.Join(members, "")))))
	}
	return Fingerprint(all...)
}

func newTemplate(subject pkix.Name, now time.Time, lifetime time.Duration) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generating a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: subject, BasicConstraintsValid: true,
		NotBefore: now.Add(-backdate).UTC(), NotAfter: now.Add(lifetime).UTC(),
	}, nil
}

func sign(template, parent *x509.Certificate, subject, issuer crypto.Signer) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, subject.Public(), issuer)
	if err != nil {
		return Pair{}, fmt.Errorf("signing certificate %q: %w", template.Subject.CommonName, err)
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(subject)
	if err != nil {
		return Pair{}, fmt.Errorf("encoding the key of %q: %w", template.Subject.CommonName, err)
	}
	return Pair{Certificate: encode(der), Key: key}, nil
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
}

func parse(pair Pair) (*x509.Certificate, crypto.Signer, error) {
	certificates, err := cert.ParseCertsPEM(pair.Certificate)
	if err != nil {
		return nil, nil, fmt.Errorf("parsing a certificate: %w", err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(pair.Key)
	if err != nil {
		return nil, nil, errors.New("parsing a private key: not a PEM-encoded key")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, nil, errors.New("parsing a private key: not a signing key")
	}
	public, ok := certificates[0].PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(signer.Public()) {
		return nil, nil, fmt.Errorf("the key does not match certificate %q", certificates[0].Subject.CommonName)
	}
	return certificates[0], signer, nil
}
