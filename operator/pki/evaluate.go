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

// Evaluate returns why a leaf certificate has to be reissued, or "" if the authority has signed it, it matches leaf,
// and it is not due for renewal.
func (a Authority) Evaluate(pair Pair, leaf Leaf, now time.Time) string {
	certificate, _, err := parse(pair)
	if err != nil {
		return "unreadable: " + err.Error()
	}
	if err := certificate.CheckSignatureFrom(a.certificate); err != nil {
		return "signed by another authority"
	}
	if now.Before(certificate.NotBefore) { // the operator's clock was ahead when it issued the certificate
		return fmt.Sprintf("not valid before %s", certificate.NotBefore.Format(time.RFC3339))
	}
	if due := renewal(certificate); !now.Before(due) {
		return fmt.Sprintf("renewal was due at %s", due.Format(time.RFC3339))
	}
	return leaf.difference(certificate)
}

// difference returns how a certificate differs from the description of the leaf, or "".
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
	case lifetime(certificate) > l.lifetime()+time.Second: // less is valid: it may end with the authority's
		return "the lifetime was reduced"
	}
	return ""
}

// renewal returns the time at which a third of the certificate's lifetime remains.
func renewal(certificate *x509.Certificate) time.Time {
	return certificate.NotAfter.Add(-lifetime(certificate) / 3)
}

// lifetime returns the time from the creation of a certificate to its expiry.
func lifetime(certificate *x509.Certificate) time.Duration {
	return certificate.NotAfter.Sub(certificate.NotBefore.Add(backdate))
}

// Validity returns the times at which the certificate in pair was created, is due for renewal, and expires.
func Validity(pair Pair) (created, due, expiry time.Time, err error) {
	certificate, _, err := parse(pair)
	if err != nil {
		return time.Time{}, time.Time{}, time.Time{}, err
	}
	return certificate.NotBefore.Add(backdate), renewal(certificate), certificate.NotAfter, nil
}

// CheckServing returns why API servers cannot serve with a certificate that the user has provided, or nil. host is the
// name or address for which clients verify the certificate, or "". trusted are the PEM certificates that clients trust;
// if it is empty, CheckServing trusts the last certificate of the chain.
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
	switch { // errors must not contain the current time, because they are part of the status
	case now.After(certificate.NotAfter):
		return fmt.Errorf("the certificate expired at %s", certificate.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(certificate.NotBefore):
		return fmt.Errorf("the certificate is not valid before %s", certificate.NotBefore.UTC().Format(time.RFC3339))
	}
	if _, err := certificate.Verify(options); err != nil {
		return fmt.Errorf("verify the certificate: %w", err)
	}
	return nil
}

// Without returns the PEM certificates in certificates that are not in others.
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
