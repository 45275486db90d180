package pki

import (
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"time"
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
	case lifetime(certificate) > l.lifetime(): // a shorter one than described may end with its authority
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

// RenewalOf returns when a certificate is due for renewal and when it expires.
func RenewalOf(pair Pair) (due, expiry time.Time, err error) {
	certificate, _, err := parse(pair)
	if err != nil {
		return time.Time{}, time.Time{}, err
	}
	return renewal(certificate), certificate.NotAfter, nil
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
