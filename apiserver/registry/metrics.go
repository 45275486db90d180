package registry

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"quorate.dev/apiserver/metrics"
)

// The outcomes of comparing an object with the stored one except for the times of managed fields.
const (
	unequalManagers = iota
	unequalObjects
	equalObjects
)

// comparisonPaths are kube-apiserver's names of the outcomes.
var comparisonPaths = [...]string{
	unequalManagers: "unequal_objects_fast", unequalObjects: "unequal_objects_slow", equalObjects: "equal_objects",
}

// Metrics are the metrics of a Registry, under kube-apiserver's names. A nil *Metrics records nothing.
type Metrics struct {
	// comparisons has the histogram of each outcome, resolved once, so that recording needs no lookup of labels. It is
	// replaced when the metrics are reset (DELETE /metrics).
	comparisons atomic.Pointer[[len(comparisonPaths)]prometheus.Observer]
}

// NewMetrics registers the metrics. It must be called at most once per registerer.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	durations := promauto.With(registerer).NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
		Name:    "apiserver_request_timestamp_comparison_time",
		Help:    "[ALPHA] Time taken for comparison of old vs new objects in UPDATE or PATCH requests",
		Buckets: []float64{0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 5.0},
	}), []string{"code_path"})
	m := &Metrics{}
	resolve := func() {
		var observers [len(comparisonPaths)]prometheus.Observer
		for i, path := range comparisonPaths {
			observers[i] = durations.WithLabelValues(path)
		}
		m.comparisons.Store(&observers)
	}
	resolve()
	registerer.MustRegister(metrics.OnReset(resolve))
	return m
}

// compared records a comparison.
func (m *Metrics) compared(outcome int, took time.Duration) {
	if m != nil {
		m.comparisons.Load()[outcome].Observe(took.Seconds())
	}
}
