package node

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/node"
)

// graphActions is the metric of upstream's graph, which is in the registry of the process.
const graphActions = "node_authorizer_graph_actions_duration_seconds"

var graphActionsDescription = prometheus.NewDesc(graphActions, "Histogram of duration of graph actions in node authorizer.", []string{"operation"}, nil)

// graphMetrics collects the metrics of the graph from the registry of the process.
type graphMetrics struct{ process prometheus.Gatherer }

func newGraphMetrics() graphMetrics {
	node.RegisterMetrics()
	return graphMetrics{legacyregistry.DefaultGatherer}
}

// Describe implements prometheus.Collector.
func (graphMetrics) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- graphActionsDescription
}

// Collect implements prometheus.Collector.
func (g graphMetrics) Collect(values chan<- prometheus.Metric) {
	families, err := g.process.Gather()
	if err != nil {
		values <- prometheus.NewInvalidMetric(graphActionsDescription, err)
		return
	}
	for _, family := range families {
		if family.GetName() == graphActions {
			copyHistograms(values, graphActionsDescription, family)
		}
	}
}

// copyHistograms collects the histograms of a family with one label.
func copyHistograms(values chan<- prometheus.Metric, description *prometheus.Desc, family *dto.MetricFamily) {
	for _, metric := range family.GetMetric() {
		histogram := metric.GetHistogram()
		buckets := make(map[float64]uint64, len(histogram.GetBucket()))
		for _, bucket := range histogram.GetBucket() {
			buckets[bucket.GetUpperBound()] = bucket.GetCumulativeCount()
		}
		values <- prometheus.MustNewConstHistogram(description, histogram.GetSampleCount(), histogram.GetSampleSum(), buckets,
			metric.GetLabel()[0].GetValue())
	}
}
