package builtin

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// MeasureFeatures registers kube-apiserver's metric of feature gates. Configure must have been called.
func MeasureFeatures(registerer prometheus.Registerer) {
	enabled := promauto.With(registerer).NewGaugeVec(prometheus.GaugeOpts{
		Name: "kubernetes_feature_enabled",
		Help: "[BETA] This metric records the data about the stage and enablement of a k8s feature.",
	}, []string{"name", "stage"})
	gate := utilfeature.DefaultMutableFeatureGate
	for feature, spec := range gate.GetAll() {
		state := 0.0
		if gate.Enabled(feature) {
			state = 1
		}
		enabled.WithLabelValues(string(feature), string(spec.PreRelease)).Set(state)
	}
}
