package metrics

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"quorate.dev/operator/reconcile/backups"
	"quorate.dev/writelimit"
)

// TestQueriedMetricsExist checks that the operator exports the metrics that the rules and dashboards of
// release/monitoring query.
func TestQueriedMetricsExist(t *testing.T) {
	exported := map[string]bool{}
	name := regexp.MustCompile(`fqName: "(\w+)"`)
	descriptions := make(chan *prometheus.Desc)
	go func() {
		defer close(descriptions)
		ctrlmetrics.Registry.(prometheus.Collector).Describe(descriptions)
		for _, collector := range []prometheus.Collector{
			New(), StateCollector{}, backups.Collector{}, writelimit.NewCounter(""),
		} {
			collector.Describe(descriptions)
		}
	}()
	for description := range descriptions {
		exported[name.FindStringSubmatch(description.String())[1]] = true
	}
	text, err := os.ReadFile("../../../release/monitoring/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	queried := 0
	for line := range strings.Lines(string(text)) {
		metric, found := strings.CutPrefix(strings.TrimSpace(line), "operator ")
		if !found {
			continue
		}
		queried++
		if !exported[metric] && !exported[strings.TrimSuffix(metric, "_bucket")] {
			t.Errorf("the operator does not export %s", metric)
		}
	}
	if queried == 0 {
		t.Error("no metrics of the operator are queried")
	}
}
