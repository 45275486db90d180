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

// Metrics count issued certificates with a requested duration, and the certificates among them that honor the request.
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

// StatusUpdated counts a CertificateSigningRequest if the update of its status, from before to after, issues the
// certificate.
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
	// Validation rejects the certificate.
	if err != nil {
		return
	}
	want := time.Duration(*old.Spec.ExpirationSeconds) * time.Second
	if honored(want, issued[0].NotAfter.Sub(issued[0].NotBefore)) {
		m.honored.WithLabelValues(signer).Inc()
	}
}

// honored reports whether the duration of a certificate is close to the requested one: it tolerates a backdated start
// of 5 minutes and a deviation of 5 %, as kube-apiserver does.
func honored(want, got time.Duration) bool {
	return (want - got).Abs() < 5*time.Minute+want/20
}

// signerLabel returns the label of a signer. It has few values: all signers other than Kubernetes' own have the label
// "other".
func signerLabel(name string) string {
	switch name {
	case certificatesv1.KubeAPIServerClientSignerName, certificatesv1.KubeAPIServerClientKubeletSignerName,
		certificatesv1.KubeletServingSignerName, "kubernetes.io/legacy-unknown":
		return name
	}
	return "other"
}
