package operator

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// TestRequestMetric checks that requests to pods have no series for each pod, and that controller-runtime's metric can
// be replaced.
func TestRequestMetric(t *testing.T) {
	registry, ok := metrics.Registry.(prometheus.Gatherer)
	if !ok {
		t.Fatal("the registry gathers nothing")
	}
	for range 2 { // operators in this process
		m := newRequestMetric("10.96.0.1:443")
		if err := registerMetrics(metrics.Registry, m); err != nil {
			t.Fatal(err)
		}
		for _, host := range []string{"10.96.0.1:443", "10.0.0.7:6443", "10.0.0.8:6443"} {
			m.Increment(t.Context(), "200", "GET", host)
		}
		const want = `
# HELP rest_client_requests_total Number of HTTP requests, partitioned by status code, method, and host.
# TYPE rest_client_requests_total counter
rest_client_requests_total{code="200",host="10.96.0.1:443",method="GET"} 1
rest_client_requests_total{code="200",host="managed",method="GET"} 2
`
		if err := testutil.GatherAndCompare(registry, strings.NewReader(want), "rest_client_requests_total"); err != nil {
			t.Error(err)
		}
	}
}
