package certificates

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/cert"
	api "k8s.io/kubernetes/pkg/apis/certificates"
)

// Metrics count issued certificates with a requested duration, and those whose duration is close to it.
type Metrics struct {
	requested *prometheus.CounterVec
	honored   *prometheus.CounterVec
}

// NewMetrics registers kube-apiserver's metrics.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	f := promauto.With(registerer)
	labels := []string{"signerName"}
	return &Metrics{
		requested: f.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_certificates_registry_csr_requested_duration_total",
			Help: "[ALPHA] Total number of issued CSRs with a requested duration, sliced by signer " +
				"(only kubernetes.io signer names are specifically identified)",
		}, labels),
		honored: f.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_certificates_registry_csr_honored_duration_total",
			Help: "[ALPHA] Total number of issued CSRs with a requested duration that was honored, sliced by signer " +
				"(only kubernetes.io signer names are specifically identified)",
		}, labels),
	}
}

// StatusUpdated counts a request whose status update issued its certificate.
func (m *Metrics) StatusUpdated(before, after runtime.Object) {
	old, ok := before.(*api.CertificateSigningRequest)
	if !ok || len(old.Status.Certificate) > 0 || old.Spec.ExpirationSeconds == nil {
		return
	}
	updated, ok := after.(*api.CertificateSigningRequest)
	if !ok || len(updated.Status.Certificate) == 0 {
		return
	}
	signer := signerLabel(old.Spec.SignerName)
	m.requested.WithLabelValues(signer).Inc()
	issued, err := cert.ParseCertsPEM(updated.Status.Certificate)
	if err != nil { // rejected by validation
		return
	}
	want := time.Duration(*old.Spec.ExpirationSeconds) * time.Second
	if honored(want, issued[0].NotAfter.Sub(issued[0].NotBefore)) {
		m.honored.WithLabelValues(signer).Inc()
	}
}

// honored tolerates a backdated start and a deviation of five percent.
func honored(want, got time.Duration) bool {
	return (want - got).Abs() < 5*time.Minute+want/20
}

// signerLabel bounds the values of the label: other signers than Kubernetes' are counted together.
func signerLabel(name string) string {
	switch name {
	case certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName,
		certificatesv1.KubeletServingSignerName, "kubernetes.io/legacy-unknown":
		return name
	}
	return "other"
}
