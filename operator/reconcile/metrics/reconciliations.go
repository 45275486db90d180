package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
)

var (
	updatedMetric = prometheus.NewDesc("quorate_cluster_updated_replicas",
		"Number of API server pods of an ApiServerCluster that were created from its current spec, by namespace and cluster.",
		[]string{"namespace", "cluster"}, nil)
	errorTimeMetric = prometheus.NewDesc("quorate_cluster_last_reconcile_error_timestamp_seconds",
		"Time of the last error in a reconciliation of an ApiServerCluster since the operator started, by namespace and "+
			"cluster, in seconds since 1970.", []string{"namespace", "cluster"}, nil)
)

// reconciliationMetrics are the metrics of the reconciliations of one cluster.
type reconciliationMetrics struct {
	updated   *int // number of pods that were created from the present spec; nil: unknown
	lastError time.Time
}

// observeReconciliation replaces the reconciliation metrics of a cluster. Values that the reconciliation has not
// determined are kept.
func (m *Metrics) observeReconciliation(cluster types.NamespacedName, r Reconciliation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.reconciliations[cluster]
	if r.Updated != nil {
		s.updated = r.Updated
	}
	if !r.Failed.IsZero() {
		s.lastError = r.Failed
	}
	m.reconciliations[cluster] = s
}

func (m *Metrics) collectReconciliations(metrics chan<- prometheus.Metric) {
	for cluster, s := range m.reconciliations {
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
