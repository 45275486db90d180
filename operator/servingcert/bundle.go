package servingcert

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/pki"
)

// Keys of the Secret in addition to tls.crt and tls.key.
const (
	AuthorityKey        = "ca.crt" // certificate with which clients verify tls.crt
	authorityPrivateKey = "ca.key"
)

// bundle is the data of the Secret: an authority and the certificate that the authority has signed.
type bundle map[string][]byte

// renewed returns the bundle itself and "" if the bundle is valid, or else a new bundle and the reason for the renewal.
// A renewal keeps the authority while the authority is valid.
func (b bundle) renewed(leaf pki.Leaf, now time.Time) (bundle, string, error) {
	authority, reason, err := b.authority(now)
	if err != nil {
		return nil, "", err
	}
	if reason == "" {
		reason = authority.Evaluate(pki.Pair{Certificate: b[corev1.TLSCertKey], Key: b[corev1.TLSPrivateKeyKey]}, leaf, now)
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

// authority returns the bundle's authority and "" if it is valid, or else a new authority and the reason for the
// renewal.
func (b bundle) authority(now time.Time) (pki.Authority, string, error) {
	existing, reason := b.existingAuthority(now)
	if reason == "" {
		return existing, "", nil
	}
	authority, err := pki.NewAuthority("quorate-operator metrics", pki.AuthorityLifetime, now)
	return authority, reason, err
}

// existingAuthority returns the bundle's authority and "", or the reason why the authority has to be replaced.
func (b bundle) existingAuthority(now time.Time) (pki.Authority, string) {
	if len(b) == 0 {
		return pki.Authority{}, "missing"
	}
	authority, err := pki.ParseAuthority(pki.Pair{Certificate: b[AuthorityKey], Key: b[authorityPrivateKey]})
	if err != nil {
		return pki.Authority{}, "invalid authority: " + err.Error()
	}
	if due := authority.Renewal(); !now.Before(due) {
		return pki.Authority{}, "renewal of the authority was due at " + due.Format(time.RFC3339)
	}
	return authority, ""
}
