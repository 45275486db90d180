package servingcert

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/pki"
)

// Keys of the Secret besides tls.crt and tls.key.
const (
	AuthorityKey        = "ca.crt" // for clients
	authorityPrivateKey = "ca.key"
)

// bundle is a Secret's data: an authority of its own and the certificate that it signed.
type bundle map[string][]byte

// renewed returns the bundle that should be, and why it is not the present one; "" when it is.
func (b bundle) renewed(leaf pki.Leaf, now time.Time) (bundle, string, error) {
	authority, reason, err := b.authority(now)
	if err != nil {
		return nil, "", err
	}
	if reason == "" {
		reason = authority.Judge(pki.Pair{Certificate: b[corev1.TLSCertKey], Key: b[corev1.TLSPrivateKeyKey]}, leaf, now)
	}
	if reason == "" {
		return b, "", nil
	}
	pair, err := authority.Issue(leaf, now)
	if err != nil {
		return nil, "", err
	}
	return bundle{
		AuthorityKey: authority.Certificate, authorityPrivateKey: authority.Key,
		corev1.TLSCertKey: pair.Certificate, corev1.TLSPrivateKeyKey: pair.Key,
	}, reason, nil
}

// authority of the bundle, or a new one and why it is new.
func (b bundle) authority(now time.Time) (pki.Authority, string, error) {
	known, reason := b.knownAuthority(now)
	if reason == "" {
		return known, "", nil
	}
	authority, err := pki.NewAuthority("quorate-operator metrics", now)
	return authority, reason, err
}

// knownAuthority returns the bundle's authority, or why it cannot stay.
func (b bundle) knownAuthority(now time.Time) (pki.Authority, string) {
	if len(b) == 0 {
		return pki.Authority{}, "there is none"
	}
	authority, err := pki.ParseAuthority(pki.Pair{Certificate: b[AuthorityKey], Key: b[authorityPrivateKey]})
	if err != nil {
		return pki.Authority{}, "authority unreadable: " + err.Error()
	}
	if due, _, err := pki.RenewalOf(authority.Pair); err != nil || !now.Before(due) {
		return pki.Authority{}, "renewal of the authority was due at " + due.Format(time.RFC3339)
	}
	return authority, ""
}
