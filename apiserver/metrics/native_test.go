package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	basemetrics "k8s.io/component-base/metrics"
	metricsfeatures "k8s.io/component-base/metrics/features"
)

// TestHistogramIsUpstreams compares a histogram with the options of Histogram with a histogram of
// component-base/metrics. With the feature gate NativeHistograms both have classic and native buckets, without the
// feature gate both have classic buckets only.
func TestHistogramIsUpstreams(t *testing.T) {
	if NativeHistograms() {
		t.Error("native histograms are enabled without the feature gate")
	}
	if err := metricsfeatures.AddFeatureGates(utilfeature.DefaultMutableFeatureGate); err != nil {
		t.Fatal(err)
	}
	for _, enabled := range []bool{true, false} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, metricsfeatures.NativeHistograms,
			enabled)
		metricsfeatures.ApplyFeatureGates(utilfeature.DefaultFeatureGate)
		registry := basemetrics.NewKubeRegistry()
		upstream := basemetrics.NewHistogram(&basemetrics.HistogramOpts{
			Name: "upstream", Help: "h", Buckets: []float64{1, 10},
		})
		registry.MustRegister(upstream)
		ours := prometheus.NewHistogram(Histogram(prometheus.HistogramOpts{Name: "ours", Buckets: []float64{1, 10}}))
		for _, value := range []float64{0, 0.3, 1, 5, 500} {
			upstream.Observe(value)
			ours.Observe(value)
		}
		var got dto.Metric
		if err := ours.Write(&got); err != nil {
			t.Fatal(err)
		}
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		want := families[0].GetMetric()[0]
		got.Histogram.CreatedTimestamp, want.Histogram.CreatedTimestamp = nil, nil
		if got.String() != want.String() {
			t.Errorf("enabled %t: got %s, want %s", enabled, got.String(), want.String())
		}
	}
}
