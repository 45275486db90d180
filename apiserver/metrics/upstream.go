package metrics

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// Process is the process-wide registry in which upstream's packages register their metrics.
type Process interface {
	prometheus.Gatherer
	Reset()
}

// FromUpstream returns a collector of the metric families in process whose names have one of the given prefixes.
func FromUpstream(process Process, prefixes ...string) prometheus.Collector {
	return upstreamFamilies{Process: process, prefixes: prefixes}
}

type upstreamFamilies struct {
	Process
	prefixes []string
}

// Describe implements prometheus.Collector. It describes no metric, because the families are not known in advance.
func (upstreamFamilies) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (p upstreamFamilies) Collect(metrics chan<- prometheus.Metric) {
	families, err := p.Gather()
	if err != nil {
		metrics <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(err), err)
		return
	}
	for _, family := range families {
		if !p.passes(family.GetName()) {
			continue
		}
		description := prometheus.NewDesc(family.GetName(), family.GetHelp(), nil, nil)
		for _, metric := range family.GetMetric() {
			metrics <- gathered{description, metric}
		}
	}
}

func (p upstreamFamilies) passes(name string) bool {
	for _, prefix := range p.prefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// gathered is a metric with labels that has been gathered from another registry.
type gathered struct {
	description *prometheus.Desc
	metric      *dto.Metric
}

// Desc implements prometheus.Metric.
func (g gathered) Desc() *prometheus.Desc { return g.description }

// Write implements prometheus.Metric.
func (g gathered) Write(out *dto.Metric) error {
	out.Label, out.Gauge, out.Counter = g.metric.Label, g.metric.Gauge, g.metric.Counter
	out.Summary, out.Histogram, out.Untyped = g.metric.Summary, g.metric.Histogram, g.metric.Untyped
	return nil
}
