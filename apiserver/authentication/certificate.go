package authentication

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/apis/asn1"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// failureLife is the time for which a failed verification of a certificate is cached.
const failureLife = 10 * time.Second

// clientCertificate authenticates the certificate of the connection. It returns neither a response nor an error if the
// connection has no certificate or there are no authorities.
func (a *Authenticator) clientCertificate(r *http.Request, c *connection) (*authenticator.Response, error) {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, nil
	}
	current := a.options.Clients.current.Load()
	if current.isEmpty() {
		return nil, nil
	}
	now := a.options.Clock.Now()
	certificate := r.TLS.PeerCertificates[0]
	a.metrics.certificateLife.Observe(certificate.NotAfter.Sub(now).Seconds())
	v := c.client.Load()
	if !v.holds(current, now) {
		v = verify(current, r.TLS.PeerCertificates, now)
		if v.err == nil {
			v.response, v.err = userOf(certificate)
		}
		c.client.Store(v)
	}
	return v.response, v.err
}

// verify verifies a certificate chain, whose first element is the client's certificate, against a bundle of
// authorities.
func verify(against *bundle, chain []*x509.Certificate, now time.Time) *decision {
	options := x509.VerifyOptions{
		Roots: against.pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if len(chain) > 1 {
		options.Intermediates = x509.NewCertPool()
		for _, intermediate := range chain[1:] {
			options.Intermediates.AddCert(intermediate)
		}
	}
	verified, err := chain[0].Verify(options)
	if err != nil {
		err = fmt.Errorf("verifying certificate %s failed: %w", describe(chain[0]), err)
		return &decision{bundle: against, until: now.Add(failureLife), err: err}
	}
	return &decision{bundle: against, until: latestExpiry(verified)}
}

// latestExpiry returns the time until which at least one chain is valid.
func latestExpiry(chains [][]*x509.Certificate) time.Time {
	var latest time.Time
	for _, chain := range chains {
		first := chain[0].NotAfter
		for _, certificate := range chain {
			if certificate.NotAfter.Before(first) {
				first = certificate.NotAfter
			}
		}
		if first.After(latest) {
			latest = first
		}
	}
	return latest
}

// userOf returns the user in a verified certificate, or nil if the certificate has no common name.
func userOf(certificate *x509.Certificate) (*authenticator.Response, error) {
	subject := certificate.Subject
	if subject.CommonName == "" {
		return nil, nil
	}
	uid, err := uidOf(certificate)
	if err != nil {
		return nil, err
	}
	fingerprint := sha256.Sum256(certificate.Raw)
	return authenticated(&authenticator.Response{User: &user.DefaultInfo{
		Name: subject.CommonName, UID: uid, Groups: subject.Organization,
		Extra: map[string][]string{user.CredentialIDKey: {"X509SHA256=" + hex.EncodeToString(fingerprint[:])}},
	}}), nil
}

func uidOf(certificate *x509.Certificate) (string, error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.AllowParsingUserUIDFromCertAuth) {
		return "", nil
	}
	uid, found := "", false
	for _, name := range certificate.Subject.Names {
		if !name.Type.Equal(asn1.X509UID()) {
			continue
		}
		value, ok := name.Value.(string)
		if !ok || value == "" || found {
			return "", errors.New("the certificate's UID must be one non-empty string")
		}
		uid, found = value, true
	}
	return uid, nil
}

func describe(certificate *x509.Certificate) string {
	return fmt.Sprintf("SN=%d, SKID=%s, AKID=%s", certificate.SerialNumber,
		colonHex(certificate.SubjectKeyId), colonHex(certificate.AuthorityKeyId))
}

func colonHex(data []byte) string {
	return strings.ReplaceAll(fmt.Sprintf("% X", data), " ", ":")
}
