package prometheus

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/promql/promqltest"
)

// TestQueriesHaveResults evaluates the queries of the dashboards on series of all metrics of two replicas.
func TestQueriesHaveResults(t *testing.T) {
	storage := promqltest.LoadedStorage(t, "load 1m\n"+allSeries(t))
	engine := promqltest.NewTestEngine(t, false, 0, 100000)
	variables := strings.NewReplacer("$namespace", "ns", "$cluster", "demo|other", "$pod", ".*", "$__rate_interval", "5m")
	for _, d := range dashboards(t) {
		for _, expression := range d.queries() {
			query, err := engine.NewInstantQuery(t.Context(), storage, nil, variables.Replace(expression), time.Unix(1200, 0))
			if err != nil {
				t.Fatalf("%s: %s: %v", d.Title, expression, err)
			}
			switch result, err := query.Exec(t.Context()).Vector(); {
			case err != nil:
				t.Errorf("%s: %s: %v", d.Title, expression, err)
			case len(result) == 0:
				t.Errorf("%s: no result for %s", d.Title, expression)
			}
			query.Close()
		}
	}
}

// allSeries returns series of all metrics in metrics.txt and of the recording rules, with the labels of the targets
// and the labels that queries match.
func allSeries(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile(root + "release/monitoring/metrics.txt")
	if err != nil {
		t.Fatal(err)
	}
	series := ""
	add := func(name, labels string) { series += fmt.Sprintf("  %s{%s} 60+60x30\n", name, labels) }
	for line := range strings.Lines(string(text)) {
		source, name, _ := strings.Cut(strings.TrimSpace(line), " ")
		for _, pod := range []string{"demo-0", "demo-1"} {
			switch {
			case source == "kubelet":
				add(name, `namespace="ns",persistentvolumeclaim="`+pod+`"`)
			case strings.HasSuffix(name, "_bucket"):
				add(name, target(source, pod)+`,le="1"`)
				add(name, target(source, pod)+`,le="+Inf"`)
			case source == "operator":
				add(name, target(source, pod)+`,condition="Available",status="true"`)
				series += fmt.Sprintf("  %s{%s} 1x30\n", name,
					target(source, pod)+`,condition="Degraded",status="true",host="managed"`)
			default:
				add(name, target(source, pod))
			}
		}
	}
	_, groups := load(t, nil, 0)
	for _, group := range groups {
		for _, rule := range group.Rules() {
			if strings.Contains(rule.Name(), ":") {
				add(rule.Name(), demo)
			}
		}
	}
	return series
}

// target returns the labels of a series that a pod exports.
func target(source, pod string) string {
	if source == "operator" {
		return operator + "," + demo + fmt.Sprintf(`,pod=%q`, pod)
	}
	return fmt.Sprintf(`job="quorate-apiserver",%s,pod=%q,code="500",verb="GET"`, demo, pod)
}
