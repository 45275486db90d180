package main

import "fmt"

// Selectors of the clusters and pods that the variables of a dashboard select. Only selectedPods filters by pod: the
// label pod of the operator's own metrics is a pod of the operator, not of an API server.
const (
	selectedClusters = `namespace=~"$namespace",cluster=~"$cluster"`
	selectedPods     = apiServerJob + "," + selectedClusters + `,pod=~"$pod"`
)

// selected returns a selector of a metric's series for the selected pods, with further matchers.
func selected(metric string, matchers ...string) string {
	selector := selectedPods
	for _, m := range matchers {
		selector += "," + m
	}
	return metric + "{" + selector + "}"
}

// inSelectedClusters returns a selector of the series of a metric or recording rule for the selected clusters, with
// further matchers.
func inSelectedClusters(metric string, matchers ...string) string {
	selector := selectedClusters
	for _, m := range matchers {
		selector += "," + m
	}
	return metric + "{" + selector + "}"
}

func sumRate(by, series string) string {
	return fmt.Sprintf("sum by (%s) (rate(%s[$__rate_interval]))", by, series)
}

// p99 returns an expression for the 99th percentile of a histogram, given the series of its buckets.
func p99(by, buckets string) string {
	return fmt.Sprintf("histogram_quantile(0.99, %s)", sumRate(by+", le", buckets))
}

// legend returns the template of a series' name: the values of the labels.
func legend(labels ...string) string {
	text := ""
	for i, label := range labels {
		if i > 0 {
			text += " "
		}
		text += "{{" + label + "}}"
	}
	return text
}

// one returns a panel with one query, whose series are named by labels.
func one(title, unit, expr string, labels ...string) panel {
	return panel{title: title, unit: unit, queries: []query{{expr, legend(labels...)}}}
}

// withKind returns the panel with another type.
func (p panel) withKind(kind string) panel {
	p.kind = kind
	return p
}

// processRow returns the row with memory, CPU time and goroutines of the processes that a selector selects.
func processRow(selector string) row {
	of := func(metric string) string { return metric + "{" + selector + "}" }
	return row{"Process", []panel{
		one("Memory", byteUnit, of("process_resident_memory_bytes"), "pod"),
		one("CPU", short, "rate("+of("process_cpu_seconds_total")+"[$__rate_interval])", "pod"),
		one("Goroutines", short, of("go_goroutines"), "pod"),
	}}
}
