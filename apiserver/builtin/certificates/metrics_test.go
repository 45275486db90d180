package certificates

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	api "k8s.io/kubernetes/pkg/apis/certificates"
	"k8s.io/utils/ptr"
)

func TestHonored(t *testing.T) {
	for _, c := range []struct {
		want, got time.Duration
		honored   bool
	}{
		{time.Hour, time.Hour, true}, {time.Hour, time.Hour + 7*time.Minute, true}, {time.Hour, 52 * time.Minute, false},
		{100 * time.Hour, 105 * time.Hour, true}, {100 * time.Hour, 106 * time.Hour, false},
		{24 * time.Hour, time.Hour, false},
	} {
		if got := honored(c.want, c.got); got != c.honored {
			t.Errorf("%v for %v: %t", c.got, c.want, got)
		}
	}
}

// TestStatusUpdatesThatIssueNothing: such updates are not counted.
func TestStatusUpdatesThatIssueNothing(t *testing.T) {
	registry := prometheus.NewRegistry()
	metrics := NewMetrics(registry)
	request := func(seconds *int32, certificate string) *api.CertificateSigningRequest {
		r := &api.CertificateSigningRequest{Spec: api.CertificateSigningRequestSpec{ExpirationSeconds: seconds}}
		if certificate != "" {
			r.Status.Certificate = []byte(certificate)
		}
		return r
	}
	for _, c := range []struct{ before, after runtime.Object }{
		{request(nil, ""), request(nil, "x")}, {request(ptr.To[int32](600), ""), request(ptr.To[int32](600), "")},
		{request(ptr.To[int32](600), "x"), request(ptr.To[int32](600), "y")}, {nil, nil},
	} {
		metrics.StatusUpdated(c.before, c.after)
	}
	families, err := registry.Gather()
	if err != nil || len(families) > 0 {
		t.Errorf("counted %v, %v", families, err)
	}
	metrics.StatusUpdated(request(ptr.To[int32](600), ""), request(ptr.To[int32](600), "not a certificate"))
	if families, err = registry.Gather(); err != nil || len(families) != 1 {
		t.Errorf("counted %v, %v", families, err)
	}
}

func TestSignerLabel(t *testing.T) {
	for name, want := range map[string]string{
		"kubernetes.io/kubelet-serving": "kubernetes.io/kubelet-serving",
		"kubernetes.io/mine":            "other", "example.com/x": "other",
	} {
		if got := signerLabel(name); got != want {
			t.Errorf("%s is measured as %s, want %s", name, got, want)
		}
	}
}
