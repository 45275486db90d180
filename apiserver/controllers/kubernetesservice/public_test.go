package kubernetesservice_test

import (
	"strings"
	"testing"

	"quorate.dev/apiserver/controllers/kubernetesservice"
)

// TestValidatePublicIP checks that the address of a replica must be valid in endpoints if the server manages the
// endpoints of the service kubernetes.
func TestValidatePublicIP(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		address string
		managed bool
		want    string // part of the error
	}{
		"valid":                {"192.0.2.1", true, ""},
		"loopback":             {"127.0.0.1", true, ""},
		"link-local":           {"169.254.1.1", true, "cannot use public IP 169.254.1.1 with endpoint reconciler: "},
		"link-local, not used": {"169.254.1.1", false, ""},
	} {
		options := kubernetesservice.Options{PublicIP: test.address}
		if test.managed {
			options.Addresses = kubernetesservice.Count(1)
		}
		err := options.ValidatePublicIP()
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: got the error %v, want %q", name, err, test.want)
		}
	}
}
