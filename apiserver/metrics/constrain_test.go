package metrics

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func TestConstrain(t *testing.T) {
	registry := prometheus.NewRegistry()
	counter := promauto.With(registry).NewCounterVec(prometheus.CounterOpts{Name: "requests_total", Help: "h"},
		[]string{"code", "verb"})
	histogram := promauto.With(registry).NewHistogramVec(
		prometheus.HistogramOpts{Name: "seconds", Help: "h", Buckets: []float64{1, 10}}, []string{"verb"})
	promauto.With(registry).NewGauge(prometheus.GaugeOpts{Name: "left_out", Help: "h"})
	promauto.With(registry).NewGauge(prometheus.GaugeOpts{Name: "untouched",
		Help: "[STABLE] (Deprecated since 1.34.0) h"}).Set(7)
	for i, verb := range []string{"GET", "LIST", "EVIL", "BAD"} {
		counter.WithLabelValues("200", verb).Add(float64(i + 1))
		histogram.WithLabelValues(verb).Observe(float64(i * 4))
	}
	gatherer := Constrain(registry, Constraints{
		Disabled: []string{"left_out", "unknown"},
		Labels:   map[string]string{"requests_total,verb": "GET,LIST", "seconds,verb": "", "seconds,other": "x"},
	})
	const want = `# HELP cardinality_enforcement_unexpected_categorizations_total [ALPHA] The count of unexpected categorizations during cardinality enforcement.
# TYPE cardinality_enforcement_unexpected_categorizations_total counter
cardinality_enforcement_unexpected_categorizations_total 6
# HELP disabled_metrics_total [BETA] The count of disabled metrics.
# TYPE disabled_metrics_total counter
disabled_metrics_total 1
# HELP hidden_metrics_total [BETA] The count of hidden metrics.
# TYPE hidden_metrics_total counter
hidden_metrics_total 0
# HELP registered_metrics_total [BETA] The count of registered metrics broken by stability level and deprecation version.
# TYPE registered_metrics_total counter
registered_metrics_total{deprecated_version="1.34.0",stability_level="STABLE"} 1
# HELP requests_total h
# TYPE requests_total counter
requests_total{code="200",verb="GET"} 1
requests_total{code="200",verb="LIST"} 2
requests_total{code="200",verb="unexpected"} 7
# HELP seconds h
# TYPE seconds histogram
seconds_bucket{verb="unexpected",le="1"} 1
seconds_bucket{verb="unexpected",le="10"} 3
seconds_bucket{verb="unexpected",le="+Inf"} 4
seconds_sum{verb="unexpected"} 24
seconds_count{verb="unexpected"} 4
# HELP untouched [STABLE] (Deprecated since 1.34.0) h
# TYPE untouched gauge
untouched 7
`
	for range 2 { // gathering changes nothing
		if err := testutil.GatherAndCompare(gatherer, strings.NewReader(want)); err != nil {
			t.Error(err)
		}
	}
}

func TestHiddenMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	f := promauto.With(registry)
	f.NewCounterVec(prometheus.CounterOpts{Name: "etcd_bookmark_total", Help: "[ALPHA] Bookmarks."},
		[]string{"resource"}).WithLabelValues("pods").Add(2)
	f.NewGauge(prometheus.GaugeOpts{
		Name: "apiserver_storage_objects", Help: "[STABLE] (Deprecated since 1.34.0) Objects.",
	}).Set(3)
	const shown = `# HELP apiserver_storage_objects [STABLE] (Deprecated since 1.34.0) Objects.
# TYPE apiserver_storage_objects gauge
apiserver_storage_objects 3
# HELP etcd_bookmark_counts [ALPHA] (Deprecated since 1.36.0) Bookmarks.
# TYPE etcd_bookmark_counts gauge
etcd_bookmark_counts{resource="pods"} 2
`
	const total = "# HELP hidden_metrics_total [BETA] The count of hidden metrics.\n# TYPE hidden_metrics_total " +
		"counter\nhidden_metrics_total "
	for show, want := range map[bool]string{false: total + "2\n", true: shown + total + "0\n"} {
		err := testutil.GatherAndCompare(Constrain(registry, Constraints{ShowHidden: show}), strings.NewReader(want),
			"apiserver_storage_objects", "etcd_bookmark_counts", "hidden_metrics_total")
		if err != nil {
			t.Errorf("shown: %t: %v", show, err)
		}
	}
}
