package pki

import (
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
)

// Bundle is the authority of one trust domain and, during a rotation, its successor or its predecessor. Its methods
// return changed copies.
//
// Invariant: Next and Previous are set at the same time only after Recover, for certificates that were still trusted
// when the key was lost.
type Bundle struct {
	Signer   Authority  // signs leaves, unless its key is lost
	Next     *Authority // is trusted and becomes the signer next; nil: none
	Previous []byte     // PEM certificates of former signers that are still trusted; nil: none
	Cross    []byte     // PEM certificate of Next (or of Signer if Next is nil), signed by its predecessor; nil: none
}

// Keys of the data in which a Bundle is stored. The Secret has the type kubernetes.io/tls: its tls.crt are the trusted
// certificates, of which the signer's is the first, and its tls.key is the signer's key.
const (
	bundleKey      = "tls.crt"
	signerKeyKey   = "tls.key"
	nextKey        = "next.crt"
	nextPrivateKey = "next.key"
	previousKey    = "previous.crt"
	crossSignedKey = "cross-signed.crt"
)

// ParseBundle parses the data of a Secret in which a Bundle is stored.
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
			return Bundle{}, fmt.Errorf("parse a certificate: %w", err)
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

// parseSigner parses the signer of a stored Bundle. The key of a signer may be missing only if the Bundle has a
// successor (see Recover).
func parseSigner(data map[string][]byte) (Authority, error) {
	if len(data[signerKeyKey]) > 0 || len(data[nextKey]) == 0 {
		return ParseAuthority(Pair{Certificate: data[bundleKey], Key: data[signerKeyKey]})
	}
	certificates, err := cert.ParseCertsPEM(data[bundleKey])
	if err != nil {
		return Authority{}, fmt.Errorf("parse a certificate: %w", err)
	}
	return Authority{certificate: certificates[0]}, nil
}

// Data returns the data of the Secret in which the Bundle is stored.
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

// Trusted returns the PEM certificates of all trusted authorities, the signer's first.
func (b Bundle) Trusted() []byte {
	trusted := slices.Clone(b.Signer.Certificate)
	if b.Next != nil {
		trusted = append(trusted, b.Next.Certificate...)
	}
	return append(trusted, b.Previous...)
}

// Issued reports whether a trusted authority has signed the certificate in pair.
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

// Subjects returns the subjects of the trusted authorities in DER, as servers send them in certificate requests.
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

// Issue creates a key and a leaf certificate for it. While the predecessor of the signer is trusted, the cross-signed
// certificate of the signer follows the leaf, so that clients that trust only the predecessor accept the leaf.
func (b Bundle) Issue(leaf Leaf, now time.Time) (Pair, error) {
	pair, err := b.issuer().Issue(leaf, now)
	if err != nil {
		return Pair{}, err
	}
	return b.chained(pair), nil
}

// chained returns the pair with the intermediate certificates that servers have to send with it in the present stage.
func (b Bundle) chained(pair Pair) Pair {
	if b.Next == nil {
		pair.Certificate = append(slices.Clone(pair.Certificate), b.Cross...)
	}
	return pair
}

// Rechain returns a leaf with the intermediate certificates that servers have to send with it in the present stage, and
// reports whether they differ from those in pair. The signer must have issued the leaf.
func (b Bundle) Rechain(pair Pair) (Pair, bool) {
	certificate, _, err := parse(pair)
	if err != nil {
		return pair, false
	}
	next := b.chained(Pair{Certificate: encode(certificate.Raw), Key: pair.Key})
	return next, string(next.Certificate) != string(pair.Certificate)
}

// Add returns the bundle with a successor whose key the signer cross-signs. It replaces an earlier successor, and fails
// while a predecessor is still trusted.
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

// Promote returns the bundle with the successor as the signer, and with the former signer's certificate as Previous. It
// discards the private key of the former signer. Without a successor, Promote does nothing.
func (b Bundle) Promote() Bundle {
	if b.Next != nil {
		b.Previous, b.Signer, b.Next = b.Signer.Certificate, *b.Next, nil
	}
	return b
}

// Drop returns the bundle without its predecessor. While there is a successor, Drop does nothing.
func (b Bundle) Drop() Bundle {
	if b.Next == nil {
		b.Previous, b.Cross = nil, nil
	}
	return b
}
