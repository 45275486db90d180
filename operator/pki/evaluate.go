package pki

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"k8s.io/client-go/util/cert"
)

// Evaluate returns why a leaf certificate must be reissued, or "" if it is valid, matches leaf and is not due for
// renewal.
func (a Authority) Evaluate(pair Pair, leaf Leaf, now time.Time) string {
	certificate, _, err := parse(pair)
	if err != nil {
		return "unreadable: " + err.Error()
	}
	if err := certificate.CheckSignatureFrom(a.certificate); err != nil {
		return "signed by another authority"
	}
	if now.Before(certificate.NotBefore) { // issued while the clock of the operator was ahead
		return fmt.Sprintf("not valid before %s", certificate.NotBefore.Format(time.RFC3339))
	}
	if due := renewal(certificate); !now.Before(due) {
		return fmt.Sprintf("renewal was due at %s", due.Format(time.RFC3339))
	}
	return leaf.difference(certificate)
}

// difference returns how a certificate differs from its description, or "".
func (l Leaf) difference(certificate *x509.Certificate) string {
	switch {
	case certificate.Subject.CommonName != l.CommonName:
		return "the common name changed"
	case !slices.Equal(sorted(certificate.Subject.Organization), sorted(l.Organizations)):
		return "the organizations changed"
	case !slices.Equal(sorted(certificate.DNSNames), sorted(l.DNSNames)):
		return "the DNS names changed"
	case !slices.Equal(addressStrings(certificate.IPAddresses), addressStrings(l.Addresses)):
		return "the addresses changed"
	case !slices.Equal(certificate.ExtKeyUsage, l.usages()):
		return "the usages changed"
	case lifetime(certificate) > l.lifetime()+time.Second: // a shorter one than described may end with its authority
		return "the lifetime was reduced"
	}
	return ""
}

// renewal returns the time at which a third of the certificate's lifetime remains.
func renewal(certificate *x509.Certificate) time.Time {
	return certificate.NotAfter.Add(-lifetime(certificate) / 3)
}

func lifetime(certificate *x509.Certificate) time.Duration {
	return certificate.NotAfter.Sub(certificate.NotBefore.Add(backdate))
}

// Validity returns when a certificate was created, is due for renewal and expires.
func Validity(pair Pair) (created, due, expiry time.Time, err error) {
	certificate, _, err := parse(pair)
	if err != nil {
		return time.Time{}, time.Time{}, time.Time{}, err
	}
	return certificate.NotBefore.Add(backdate), renewal(certificate), certificate.NotAfter, nil
}

// CheckServing returns why API servers cannot serve with a certificate that was not issued by this package, or nil. Host
// is the name or address for which clients verify it, or "". Trusted are the PEM certificates with which they do; if it
// is empty, the issuer is not verified.
func CheckServing(pair Pair, trusted []byte, host string, now time.Time) error {
	certificate, _, err := parse(pair)
	if err != nil {
		return err
	}
	chain, err := cert.ParseCertsPEM(pair.Certificate)
	if err != nil {
		return err
	}
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: now, DNSName: host,
	}
	for _, intermediate := range chain[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	if len(trusted) == 0 {
		options.Roots.AddCert(chain[len(chain)-1])
	} else if !options.Roots.AppendCertsFromPEM(trusted) {
		return errors.New("ca.crt contains no PEM certificate")
	}
	switch { // messages without the current time
	case now.After(certificate.NotAfter):
		return fmt.Errorf("the certificate expired at %s", certificate.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(certificate.NotBefore):
		return fmt.Errorf("the certificate is not valid before %s", certificate.NotBefore.UTC().Format(time.RFC3339))
	}
	if _, err := certificate.Verify(options); err != nil {
		return fmt.Errorf("verifying the certificate: %w", err)
	}
	return nil
}

// Without returns the PEM certificates that are not among others.
func Without(certificates, others []byte) []byte {
	var out []byte
	for block, rest := pem.Decode(certificates); block != nil; block, rest = pem.Decode(rest) {
		if encoded := pem.EncodeToMemory(block); !bytes.Contains(others, encoded) {
			out = append(out, encoded...)
		}
	}
	return out
}

func sorted(values []string) []string {
	out := slices.Clone(values)
	slices.Sort(out)
	return out
}

func addressStrings(addresses []net.IP) []string {
	out := make([]string, 0, len(addresses))
	for _, address := range addresses {
		out = append(out, address.String())
	}
	slices.Sort(out)
	return out
}
