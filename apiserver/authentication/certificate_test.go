package authentication

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"testing"

	"k8s.io/apimachinery/pkg/apis/asn1"
	upstream "k8s.io/apiserver/pkg/authentication/request/x509"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// TestUIDOfCertificate compares UIDs in certificates with kube-apiserver's, with the gate on and off.
func TestUIDOfCertificate(t *testing.T) {
	named := func(values ...any) *x509.Certificate {
		certificate := &x509.Certificate{Subject: pkix.Name{CommonName: "alice"}}
		for _, value := range values {
			certificate.Subject.Names = append(certificate.Subject.Names,
				pkix.AttributeTypeAndValue{Type: asn1.X509UID(), Value: value})
		}
		return certificate
	}
	for _, enabled := range []bool{true, false} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
			features.AllowParsingUserUIDFromCertAuth, enabled)
		for name, certificate := range map[string]*x509.Certificate{
			"none": named(), "one": named("7"), "two": named("7", "8"), "empty": named(""), "number": named(7),
		} {
			uid, err := uidOf(certificate)
			theirs, _, theirErr := upstream.CommonNameUserConversion.User([]*x509.Certificate{certificate})
			if (err == nil) != (theirErr == nil) || err == nil && uid != theirs.User.GetUID() {
				t.Errorf("%s, gate %t: got %q, %v; upstream %v, %v", name, enabled, uid, err, theirs, theirErr)
			}
		}
	}
}
