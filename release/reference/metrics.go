package main

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"quorate.dev/operator/limited"
	"quorate.dev/operator/reconcile/backups"
	clustermetrics "quorate.dev/operator/reconcile/metrics"
	"quorate.dev/writelimit"
)

// family is a metric family.
type family struct{ name, help, labels string }

// described matches the text of a prometheus.Desc, whose fields are not exported.
var described = regexp.MustCompile(
	`^Desc\{fqName: "([^"]*)", help: "(.*)", constLabels: \{\}, variableLabels: \{(.*)\}\}$`,
)

// operatorFamilies returns the metric families that the collectors of the operator describe, sorted by name.
func operatorFamilies() ([]family, error) {
	var families []family
	for _, collector := range []prometheus.Collector{
		&clustermetrics.Metrics{}, clustermetrics.StateCollector{}, backups.Collector{}, writelimit.NewCounter(limited.Help),
	} {
		descriptions := make(chan *prometheus.Desc, 100)
		collector.Describe(descriptions)
		close(descriptions)
		for description := range descriptions {
			match := described.FindStringSubmatch(description.String())
			if match == nil {
				return nil, fmt.Errorf("unexpected %s", description)
			}
			families = append(families, family{name: match[1], help: match[2], labels: match[3]})
		}
	}
	slices.SortFunc(families, func(a, b family) int { return cmp.Compare(a.name, b.name) })
	return families, nil
}

// metrics generates metrics.md.
func metrics(string) (string, error) {
	families, err := operatorFamilies()
	if err != nil {
		return "", err
	}
	var out strings.Builder
	out.WriteString("# Metrics of the operator\n\n" + generated +
		"`https://quorate-operator-metrics:8443/metrics` also has `controller_runtime_*`, `workqueue_*`, `rest_client_*`, " +
		"`go_*` and `process_*` of the libraries. [monitoring.md](../monitoring.md) describes how to scrape it, and " +
		"[apiserver-metrics.md](apiserver-metrics.md) has the metrics of API servers.\n\n| metric | type | labels | value " +
		"|\n| --- | --- | --- | --- |\n")
	for _, f := range families {
		kind := "gauge"
		if strings.HasSuffix(f.name, "_total") {
			kind = "counter"
		}
		fmt.Fprintf(&out, "| `%s` | %s | %s | %s |\n", f.name, kind, strings.ReplaceAll(f.labels, ",", ", "), cell(f.help))
	}
	return out.String(), nil
}
