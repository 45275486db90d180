package aggregator

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/util/x509metrics"
	"k8s.io/component-base/metrics"
)

// Certificates registers kube-aggregator's metrics of deprecated serving certificates, and returns a function for
// Options.Inspect that counts them.
func Certificates(registerer prometheus.Registerer) func(http.RoundTripper) http.RoundTripper {
	counter := func(name, help string) *metrics.Counter {
		c := metrics.NewCounter(&metrics.CounterOpts{
			Namespace: "apiserver", Subsystem: "kube_aggregator", Name: name, Help: help, StabilityLevel: metrics.ALPHA,
		})
		c.Create(nil) // upstream creates a counter when it is registered with upstream's registry
		registerer.MustRegister(c)
		return c
	}
	missingSAN := counter("x509_missing_san_total", "Counts the number of requests to servers missing SAN extension "+
		"in their serving certificate OR the number of connection failures due to the lack of x509 certificate SAN "+
		"extension missing (either/or, based on the runtime environment)")
	sha1 := counter("x509_insecure_sha1_total", "Counts the number of requests to servers with insecure SHA1 signatures "+
		"in their serving certificate OR the number of connection failures due to the insecure SHA1 signatures "+
		"(either/or, based on the runtime environment)")
	return x509metrics.NewDeprecatedCertificateRoundTripperWrapperConstructor(missingSAN, sha1)
}
