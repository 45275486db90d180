// Package pki creates and evaluates X.509 certificate authorities and the leaf certificates that they sign, and the
// keys of service-account tokens. Its functions read no clock and store nothing; apart from random keys and serial
// numbers they are pure.
//
// A cluster has several trust domains, each with its own authority (see desired.Domains). A Bundle is the authority of
// one domain in the stages of a rotation: Add, Promote and Drop correspond to the stages TrustBoth, Reissue and DropOld
// of package rotation, and are idempotent. Keys is its counterpart for service-account tokens.
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

// Default lifetimes. A leaf is renewed, and an authority replaced, when a third of its lifetime remains.
const (
	AuthorityLifetime = 10 * 365 * 24 * time.Hour
	LeafLifetime      = 365 * 24 * time.Hour

	// backdate is subtracted from NotBefore, so that new certificates are valid on machines whose clock is slow.
	backdate = 5 * time.Minute
)

const authorityUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign | x509.KeyUsageDigitalSignature

// Pair is a certificate (or a public key) and its private key, both in PEM.
type Pair struct {
	Certificate []byte
	Key         []byte
}

// Authority is a certificate authority: the certificate with which leaves are verified and the key that signs them.
type Authority struct {
	Pair
	certificate *x509.Certificate
	signer      crypto.Signer
}

// Leaf describes the certificate of a server or client.
type Leaf struct {
	CommonName    string
	Organizations []string
	DNSNames      []string
	Addresses     []net.IP
	Server        bool          // with the extended key usage serverAuth
	Client        bool          // with the extended key usage clientAuth
	Lifetime      time.Duration // 0 means LeafLifetime
}

// NewAuthority creates a self-signed authority.
func NewAuthority(name string, lifetime time.Duration, now time.Time) (Authority, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Authority{}, fmt.Errorf("generate the key of authority %s: %w", name, err)
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

// ParseAuthority parses an authority. It fails if the key does not match the certificate, or the certificate has no
// basic constraint CA.
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

// ParseUserAuthority parses an authority that the user has provided. It must be self-signed, because servers and
// clients trust its certificate without an issuer, and must not have expired.
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

// Signed reports whether the authority has signed the certificate in pair.
func (a Authority) Signed(pair Pair) bool {
	certificate, _, err := parse(pair)
	return err == nil && certificate.CheckSignatureFrom(a.certificate) == nil
}

// CrossSign returns a certificate for the successor's key that is signed by a. Clients that trust only a accept
// certificates of the successor that are sent together with the cross-signed one.
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

// Issue creates a key and signs a leaf certificate for it. The leaf expires with the authority at the latest.
func (a Authority) Issue(leaf Leaf, now time.Time) (Pair, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate the key of %s: %w", leaf.CommonName, err)
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

// NewServiceAccountKey creates a key pair for service-account tokens. Certificate contains the public key.
func NewServiceAccountKey() (Pair, error) {
	signer, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("generate the service-account key: %w", err)
	}
	public, err := x509.MarshalPKIXPublicKey(signer.Public())
	if err != nil {
		return Pair{}, fmt.Errorf("encode the service-account key: %w", err)
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(signer)
	if err != nil {
		return Pair{}, fmt.Errorf("encode the service-account key: %w", err)
	}
	return Pair{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: keyutil.PublicKeyBlockType, Bytes: public}), Key: key,
	}, nil
}

// Fingerprint returns a short hash of PEM certificates, for annotations.
func Fingerprint(certificates ...[]byte) string {
	sum := sha256.New()
	for _, certificate := range certificates {
		sum.Write(certificate)
	}
	return hex.EncodeToString(sum.Sum(nil))[:16]
}

// SetFingerprint returns a short hash of several sets of PEM certificates. The order of the certificates in a set is
// irrelevant, the order of the sets is not.
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
		return nil, fmt.Errorf("generate a serial number: %w", err)
	}
	return &x509.Certificate{
		SerialNumber: serial.Add(serial, big.NewInt(1)), Subject: subject, BasicConstraintsValid: true,
		NotBefore: now.Add(-backdate).UTC(), NotAfter: now.Add(lifetime).UTC(),
	}, nil
}

func sign(template, parent *x509.Certificate, subject, issuer crypto.Signer) (Pair, error) {
	der, err := x509.CreateCertificate(rand.Reader, template, parent, subject.Public(), issuer)
	if err != nil {
		return Pair{}, fmt.Errorf("sign certificate %q: %w", template.Subject.CommonName, err)
	}
	key, err := keyutil.MarshalPrivateKeyToPEM(subject)
	if err != nil {
		return Pair{}, fmt.Errorf("encode the key of %q: %w", template.Subject.CommonName, err)
	}
	return Pair{Certificate: encode(der), Key: key}, nil
}

func encode(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: cert.CertificateBlockType, Bytes: der})
}

// parse parses the first certificate of a pair and its private key, and checks that they match. Errors do not contain
// any part of the key.
func parse(pair Pair) (*x509.Certificate, crypto.Signer, error) {
	certificates, err := cert.ParseCertsPEM(pair.Certificate)
	if err != nil {
		return nil, nil, fmt.Errorf("parse a certificate: %w", err)
	}
	key, err := keyutil.ParsePrivateKeyPEM(pair.Key)
	if err != nil {
		return nil, nil, errors.New("parse a private key: not a PEM-encoded key")
	}
	signer, ok := key.(crypto.Signer)
	if !ok {
		return nil, nil, errors.New("parse a private key: not a signing key")
	}
	public, ok := certificates[0].PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !public.Equal(signer.Public()) {
		return nil, nil, fmt.Errorf("the key does not match certificate %q", certificates[0].Subject.CommonName)
	}
	return certificates[0], signer, nil
}
