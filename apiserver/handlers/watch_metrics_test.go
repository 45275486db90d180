package handlers

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	metricsfeatures "k8s.io/component-base/metrics/features"

	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/resource"
)

// TestEventSizesAreThoseOfAHistogram compares the counts of events with a histogram of the Prometheus client.
func TestEventSizesAreThoseOfAHistogram(t *testing.T) {
	if err := metricsfeatures.AddFeatureGates(utilfeature.DefaultMutableFeatureGate); err != nil {
		t.Fatal(err)
	}
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, metricsfeatures.NativeHistograms, true)
	collector := &eventCollector{}
	counts := collector.of(resource.Match{
		Definition: &resource.Definition{}, Version: &resource.Version{},
	})
	want := prometheus.NewHistogram(metrics.Histogram(prometheus.HistogramOpts{
		Name: "h", Buckets: prometheus.ExponentialBuckets(1024, 2, 8),
	}))
	for _, size := range []int{1, 2, 3, 1000, 1023, 1024, 1025, 2048, 2049, 100_000, 131_072, 131_073, 5_000_000} {
		counts.add(size)
		want.Observe(float64(size))
	}
	out := make(chan prometheus.Metric, 2)
	collector.Collect(out)
	<-out // the number of events
	var got, expected dto.Metric
	if err := (<-out).Write(&got); err != nil {
		t.Fatal(err)
	}
	if err := want.Write(&expected); err != nil {
		t.Fatal(err)
	}
	got.Label, got.Histogram.CreatedTimestamp, expected.Histogram.CreatedTimestamp = nil, nil, nil
	if got.String() != expected.String() {
		t.Errorf("got %s\nwant %s", got.String(), expected.String())
	}
}

// TestEventsOfForgottenResources checks that the counts of a resource that is no longer served are dropped.
func TestEventsOfForgottenResources(t *testing.T) {
	collector := &eventCollector{}
	for _, plural := range []string{"things", "kinds"} {
		collector.of(resource.Match{
			Definition: &resource.Definition{Group: "a.test", Plural: plural}, Version: &resource.Version{Name: "v1"},
		}).add(1)
	}
	collector.Forget(schema.GroupResource{Group: "a.test", Resource: "things"})
	out := make(chan prometheus.Metric, 4)
	collector.Collect(out)
	if len(out) != 2 { // the number and the sizes of the events of the other resource
		t.Errorf("%d metrics are left, want 2", len(out))
	}
}
