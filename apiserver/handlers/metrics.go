package handlers

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"quorate.dev/apiserver/registry"
)

// Metrics are the metrics of handlers, under kube-apiserver's names.
type Metrics struct {
	watchLists *prometheus.HistogramVec
	events     eventCollector
}

// NewMetrics registers the metrics. It must be called at most once per registerer.
func NewMetrics(registerer prometheus.Registerer) *Metrics {
	m := &Metrics{
		watchLists: promauto.With(registerer).NewHistogramVec(prometheus.HistogramOpts{
			Name: "apiserver_watch_list_duration_seconds",
			Help: "[BETA] Response latency distribution in seconds for watch list requests " +
				"broken by group, version, resource and scope.",
			Buckets: []float64{0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 2, 4, 6, 8, 10, 15, 20, 30, 45, 60},
		}, []string{"group", "version", "resource", "scope"}),
	}
	registerer.MustRegister(&m.events)
	return m
}

// watchListed observes the latency of the initial events of a watch, which have just been sent.
func (c *call) watchListed(selection registry.Selection) {
	if c.Metrics == nil {
		return
	}
	took := c.Clock.Since(c.record.Received)
	scope := watchScope(c.target, selection)
	observer := c.Metrics.watchLists.WithLabelValues(c.target.Group, c.target.Version.Name, c.target.Plural, scope)
	observer.Observe(took.Seconds())
}

// watchScope returns the scope label: resource, namespace or cluster, as kube-apiserver determines it.
func watchScope(t registry.Target, selection registry.Selection) string {
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
