package handlers

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
)

// Metrics are the metrics of handlers. Their names are kube-apiserver's.
type Metrics struct {
	watchLists *prometheus.HistogramVec
	events     eventCollector
}

// NewMetrics registers the metrics. It must be called at most once per registerer.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		watchLists: promauto.With(registerer).NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
			Name: "apiserver_watch_list_duration_seconds",
			Help: "[BETA] Response latency distribution in seconds for watch list requests " +
				"broken by group, version, resource and scope.",
			Buckets: []float64{
				0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.25, 1.5, 2, 3, 4, 5, 6, 8, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300,
			},
		}), []string{"group", "version", "resource", "scope"}),
	}
	registerer.MustRegister(&m.events)
	return m
}

// watchListed observes how long a watch took to send its initial events, measured from the receipt of the request.
func (c *call) watchListed(selection registry.Selection) {
	if c.Metrics == nil {
		return
	}
	took := c.Clock.Since(c.record.Received)
	scope := watchScope(c.target, selection)
	observer := c.Metrics.watchLists.WithLabelValues(c.target.Group, c.target.Version.Name, c.target.Plural, scope)
	observer.Observe(took.Seconds())
}

// watchScope returns the label "scope" as kube-apiserver determines it: resource, namespace or cluster.
func watchScope(t resource.Target, selection registry.Selection) string {
	selects := func(field string) bool {
		if selection.Field == nil {
			return false
		}
		value, ok := selection.Field.RequiresExactMatch(field)
		return ok && value != ""
	}
	switch {
	case selects("metadata.name"):
		return "resource"
	case t.Namespace != "", selects("metadata.namespace"):
		return "namespace"
	}
	return "cluster"
}
