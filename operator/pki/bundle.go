package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
)

// Bundle is the authority of a trust domain and, while it is being replaced, its successor or predecessor. Its methods
// return changed copies.
type Bundle struct {
	Signer   Authority  // signs leaves, unless its key is lost
	Next     *Authority // trusted and to become the signer; nil: none
	Previous []byte     // PEM certificate of the former signer, which is still trusted; nil: none
	Cross    []byte     // PEM certificate of Next, or without Next of Signer, signed by its predecessor; nil: none
}

// Keys of the data of a stored Bundle. The certificate and the key of a kubernetes.io/tls Secret are the trusted
// certificates, the signer's first, and the signer's key.
const (
	bundleKey      = "tls.crt"
	signerKeyKey   = "tls.key"
	nextKey        = "next.crt"
	nextPrivateKey = "next.key"
	previousKey    = "previous.crt"
	crossSignedKey = "cross-signed.crt"
)

// ParseBundle parses the data of a stored Bundle.
func ParseBundle(data map[string][]byte) (Bundle, error) {
	signer, err := parseSigner(data)
	if err != nil {
		return Bundle{}, err
	}
	signer.Certificate = encode(signer.certificate.Raw)
	b := Bundle{Signer: signer, Previous: data[previousKey], Cross: data[crossSignedKey]}
	for _, certificates := range [][]byte{b.Previous, b.Cross} {
		if len(certificates) == 0 {
			continue
		}
		if _, err := cert.ParseCertsPEM(certificates); err != nil {
			return Bundle{}, fmt.Errorf("parsing a certificate: %w", err)
		}
	}
	if len(data[nextKey]) > 0 {
		next, err := ParseAuthority(Pair{Certificate: data[nextKey], Key: data[nextPrivateKey]})
		if err != nil {
			return Bundle{}, fmt.Errorf("the next authority: %w", err)
		}
		b.Next = &next
	}
	return b, nil
}

// parseSigner parses the signer in the data of a stored Bundle. Only a signer with a successor may have lost its key.
func parseSigner(data map[string][]byte) (Authority, error) {
	if len(data[signerKeyKey]) > 0 || len(data[nextKey]) == 0 {
		return ParseAuthority(Pair{Certificate: data[bundleKey], Key: data[signerKeyKey]})
	}
	certificates, err := cert.ParseCertsPEM(data[bundleKey])
	if err != nil {
		return Authority{}, fmt.Errorf("parsing a certificate: %w", err)
	}
	return Authority{certificate: certificates[0]}, nil
}

// Data returns the data to store.
func (b Bundle) Data() map[string][]byte {
	data := map[string][]byte{bundleKey: b.Trusted(), signerKeyKey: append([]byte{}, b.Signer.Key...)}
	if b.Next != nil {
		data[nextKey], data[nextPrivateKey] = b.Next.Certificate, b.Next.Key
	}
	if len(b.Previous) > 0 {
		data[previousKey] = b.Previous
	}
	if len(b.Cross) > 0 {
		data[crossSignedKey] = b.Cross
	}
	return data
}

// Trusted returns the PEM certificates that are trusted, the signer's first.
func (b Bundle) Trusted() []byte {
	trusted := slices.Clone(b.Signer.Certificate)
	if b.Next != nil {
		trusted = append(trusted, b.Next.Certificate...)
	}
	return append(trusted, b.Previous...)
}

// Issued reports whether one of the trusted authorities signed a leaf.
func (b Bundle) Issued(pair Pair) bool {
	leaf, _, err := parse(pair)
	if err != nil {
		return false
	}
	authorities, err := cert.ParseCertsPEM(b.Trusted())
	return err == nil && slices.ContainsFunc(authorities, func(a *x509.Certificate) bool {
		return leaf.CheckSignatureFrom(a) == nil
	})
}

// Subjects returns the DER encodings of the names of the trusted authorities.
func (b Bundle) Subjects() [][]byte {
	authorities, err := cert.ParseCertsPEM(b.Trusted())
	if err != nil {
		return nil
	}
	var subjects [][]byte
	for _, authority := range authorities {
		subjects = append(subjects, authority.RawSubject)
	}
	return subjects
}

// Issue creates a leaf. While the former signer is trusted, the leaf comes with the cross-signed certificate of the
// signer, so that clients that trust only the former signer accept it.
func (b Bundle) Issue(leaf Leaf, now time.Time) (Pair, error) {
	pair, err := b.issuer().Issue(leaf, now)
	if err != nil {
		return Pair{}, err
	}
	return b.chained(pair), nil
}

// chained returns the pair with the certificates that have to be sent with it at present.
func (b Bundle) chained(pair Pair) Pair {
	if b.Next == nil {
		pair.Certificate = append(slices.Clone(pair.Certificate), b.Cross...)
	}
	return pair
}

// Rechain returns a leaf with the certificates that have to be sent with it at present, and whether they differ from
// those that it has. The pair must be one that the signer issued.
func (b Bundle) Rechain(pair Pair) (Pair, bool) {
	certificate, _, err := parse(pair)
	if err != nil {
		return pair, false
	}
	next := b.chained(Pair{Certificate: encode(certificate.Raw), Key: pair.Key})
	return next, string(next.Certificate) != string(pair.Certificate)
}

// Add returns the bundle with a successor, which is cross-signed by the signer. It replaces an earlier successor.
func (b Bundle) Add(next Authority, now time.Time) (Bundle, error) {
	if len(b.Previous) > 0 {
		return Bundle{}, errors.New("the former authority has not been dropped")
	}
	cross, err := b.Signer.CrossSign(next, now)
	if err != nil {
		return Bundle{}, err
	}
	b.Next, b.Cross = &next, cross
	return b, nil
}

// Promote returns the bundle with the successor as the signer. The key of the former signer is dropped.
func (b Bundle) Promote() Bundle {
	if b.Next != nil {
		b.Previous, b.Signer, b.Next = b.Signer.Certificate, *b.Next, nil
	}
	return b
}

// Drop returns the bundle without the former signer.
func (b Bundle) Drop() Bundle {
	if b.Next == nil {
		b.Previous, b.Cross = nil, nil
	}
	return b
}
