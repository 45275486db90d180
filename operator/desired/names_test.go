package desired

import (
	"strings"
	"testing"

	"quorate.dev/operator/api/v1alpha1"
)

// TestNamesOfCertificates compares the names in spec.extraSANs that the CRD accepts with the names that the operator
// accepts.
func TestNamesOfCertificates(t *testing.T) {
	evaluate := rules(t, "extraSANs")
	for name, valid := range map[string]bool{
		"api.example.org": true, "API.example.org": true, "*.example.org": true, "localhost": true,
		"a_b.example": true, "xn--mnchen-3ya.de": true, "1.example": true, "192.0.2.10": true, "255.255.255.255": true,
		"2001:db8::1": true, "::ffff:192.0.2.1": true, "not a name": false, "10.0.0.300": false, "10.0.0": false, "1": false,
		"1.2.3.4.5": false, "": false, ".example.org": false, "example.org.": false, "a..b": false, "*": false,
		"a.*.org": false, "-a.org": false, "https://a.org": false, "a.org:443": false, "münchen.de": false,
		"a\nb": false, "01.2.3.4": false,
	} {
		cluster := demo(func(s *v1alpha1.ApiServerClusterSpec) { s.ExtraSANs = []string{"api.example.org", name} })
		err := validateNames(cluster)
		if valid != (err == nil) {
			t.Errorf("%q: the operator says %v", name, err)
		}
		if err != nil && !strings.Contains(err.Error(), "is not a DNS name or IP address") {
			t.Errorf("%q: %v", name, err)
		}
		message := evaluate([]any{"api.example.org", name})
		if valid != (message == "") ||
			!valid && !strings.Contains(name, "\n") &&
				!strings.Contains(message, strings.TrimSpace("not a DNS name or IP address: "+name)) {
			t.Errorf("%q: the CRD says %q", name, message)
		}
	}
}
