package storage

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
)

// Metrics are what a Store measures, under kube-apiserver's names. nil measures nothing.
type Metrics struct {
	clock    clock.PassiveClock
	resource func(path string) schema.GroupResource

	durations        *prometheus.HistogramVec
	requests, errors *prometheus.CounterVec
}

// Measure makes the store measure its requests to etcd, and tell the size of the database when that is asked for.
// resource tells what is stored under a path. It must be called before the store is used.
func (s *Store) Measure(registerer prometheus.Registerer, clock clock.PassiveClock, resource func(path string) schema.GroupResource) {
	f := promauto.With(registerer)
	labels := []string{"operation", "group", "resource"}
	s.metrics = &Metrics{
		clock: clock, resource: resource,
		durations: f.NewHistogramVec(prometheus.HistogramOpts{
			Name: "etcd_request_duration_seconds", Help: "Etcd request latency in seconds for each operation and object type.",
			Buckets: []float64{0.005, 0.025, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60},
		}, labels),
		requests: f.NewCounterVec(prometheus.CounterOpts{Name: "etcd_requests_total", Help: "Etcd request counts for each operation and object type."}, labels),
		errors:   f.NewCounterVec(prometheus.CounterOpts{Name: "etcd_request_errors_total", Help: "Etcd failed request counts for each operation and object type."}, labels),
	}
	registerer.MustRegister(size{s})
}

func (m *Metrics) begin() time.Time {
	if m == nil {
		return time.Time{}
	}
	return m.clock.Now()
}

// end records a request to etcd. A transaction whose conditions did not hold is no error.
func (m *Metrics) end(operation, path string, began time.Time, err error) {
	if m == nil {
		return
	}
	of := m.resource(path)
	m.durations.WithLabelValues(operation, of.Group, of.Resource).Observe(m.clock.Since(began).Seconds())
	m.requests.WithLabelValues(operation, of.Group, of.Resource).Inc()
	if err != nil {
		m.errors.WithLabelValues(operation, of.Group, of.Resource).Inc()
	}
}

// size asks for the size of the database whenever the metrics are read.
type size struct{ store *Store }

const (
	sizeTimeout = time.Second
	clusterID   = "etcd-0" // what kube-apiserver calls its first, here only, cluster
)

var sizeDescription = prometheus.NewDesc("apiserver_storage_size_bytes",
	"Size of the storage database file physically allocated in bytes.", []string{"storage_cluster_id"}, nil)

// Describe implements prometheus.Collector.
func (size) Describe(out chan<- *prometheus.Desc) { out <- sizeDescription }

// Collect implements prometheus.Collector. There is no size while etcd does not answer.
func (s size) Collect(out chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), sizeTimeout)
	defer cancel()
	if bytes, err := s.store.Size(ctx); err == nil {
		out <- prometheus.MustNewConstMetric(sizeDescription, prometheus.GaugeValue, float64(bytes), clusterID)
	}
}
