package reconcile

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"

	"quorate.dev/operator/membership"
)

var (
	updatedMetric = prometheus.NewDesc("quorate_cluster_updated_replicas",
		"Number of API server pods of an ApiServerCluster that were created from its current spec, by namespace and cluster.",
		[]string{"namespace", "cluster"}, nil)
	errorTimeMetric = prometheus.NewDesc("quorate_cluster_last_reconcile_error_timestamp_seconds",
		"Time of the last error in a reconciliation of an ApiServerCluster since the operator started, by namespace and cluster, in "+
			"seconds since 1970.", []string{"namespace", "cluster"}, nil)
)

// passMetrics are the reconciliation metrics of one cluster.
type passMetrics struct {
	updated   *int // pods; nil: unknown
	lastError time.Time
}

// observePass replaces the reconciliation metrics of a cluster. Values that p does not contain are kept.
func (m *Metrics) observePass(cluster types.NamespacedName, p *pass) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.passes[cluster]
	if p.updated != nil {
		s.updated = p.updated
	}
	if len(p.input.Errors) > 0 {
		s.lastError = p.input.Now
	}
	m.passes[cluster] = s
}

func (m *Metrics) collectPasses(metrics chan<- prometheus.Metric) {
	for cluster, s := range m.passes {
		gauge := func(d *prometheus.Desc, value float64) {
			metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, cluster.Namespace, cluster.Name)
		}
		if s.updated != nil {
			gauge(updatedMetric, float64(*s.updated))
		}
		if !s.lastError.IsZero() {
			gauge(errorTimeMetric, float64(s.lastError.Unix()))
		}
	}
}

// countUpdated returns the number of pods that were created from the present spec.
func countUpdated(pods []membership.Pod) *int {
	n := 0
	for _, pod := range pods {
		if !pod.Outdated && !pod.Terminating {
			n++
		}
	}
	return &n
}
