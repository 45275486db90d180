package watchcache

import (
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"quorate.dev/apiserver/metrics"
)

// These are the buckets of kube-apiserver's histograms, in seconds.
var (
	waitBuckets = []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3}
	loadBuckets = []float64{0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 180, 600}
)

// histogram is a histogram of one cache. The first observation creates the histogram, because most caches never have
// an observation. Observations are part of reads, so that they take no lock.
type histogram struct {
	observed atomic.Pointer[observations] // nil before the first observation
}

type observations struct{ prometheus.Histogram }

// observe adds a duration. All calls for one histogram have the same buckets.
func (h *histogram) observe(duration time.Duration, buckets []float64) {
	if h.observed.Load() == nil {
		created := prometheus.NewHistogram(metrics.Histogram(prometheus.HistogramOpts{Name: "h", Buckets: buckets}))
		h.observed.CompareAndSwap(nil, &observations{created})
	}
	h.observed.Load().Observe(duration.Seconds())
}

// collect exports the histogram, unless it has no observation.
func (h *histogram) collect(desc *prometheus.Desc, out chan<- prometheus.Metric, labels ...string) {
	if observed := h.observed.Load(); observed != nil {
		out <- described{observed.Histogram, desc, prometheus.MakeLabelPairs(desc, labels)}
	}
}

// described is a metric under the name and with the labels of a description.
type described struct {
	prometheus.Metric
	desc   *prometheus.Desc
	labels []*dto.LabelPair
}

// Desc implements prometheus.Metric.
func (d described) Desc() *prometheus.Desc { return d.desc }

// Write implements prometheus.Metric.
func (d described) Write(out *dto.Metric) error {
	err := d.Metric.Write(out)
	out.Label = d.labels
	return err
}
