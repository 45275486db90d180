package prometheus

import (
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

var record = flag.Bool("record", false, "Write release/monitoring/metrics.txt.")

// TestQueriesNameMetrics parses all queries of rules and dashboards, and checks that their metrics are in metrics.txt.
// Tests of the exporters check that these metrics exist.
func TestQueriesNameMetrics(t *testing.T) {
	recorded := map[string]bool{}
	queries := map[string]string{} // location, by query
	_, groups := load(t, nil, 0)
	for _, group := range groups {
		for _, rule := range group.Rules() {
			queries[rule.Query().String()] = "rule " + rule.Name()
			recorded[rule.Name()] = true
		}
	}
	for _, d := range dashboards(t) {
		for _, query := range d.queries() {
			queries[query] = d.Title
		}
	}
	var names []string
	for query, location := range queries {
		for _, selector := range selectors(t, location, query) {
			switch source := sourceOf(selector); {
			case strings.Contains(selector.Name, ":"):
				if !recorded[selector.Name] {
					t.Errorf("%s: no rule records %s", location, selector.Name)
				}
			case source == "":
				t.Errorf("%s: %s selects series of all jobs", location, selector)
			default:
				names = append(names, source+" "+selector.Name)
			}
		}
	}
	slices.Sort(names)
	compareNames(t, strings.Join(slices.Compact(names), "\n")+"\n")
}

func compareNames(t *testing.T, got string) {
	t.Helper()
	const file = root + "release/monitoring/metrics.txt"
	if *record {
		if err := os.WriteFile(file, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("the metrics in queries differ from %s; run go -C tools/prometheus test -record\n%s", file, got)
	}
}

// sourceOf returns the exporter of the series that a selector selects, or "".
func sourceOf(selector *parser.VectorSelector) string {
	for _, matcher := range selector.LabelMatchers {
		if matcher.Name == "job" && matcher.Type == labels.MatchEqual {
			if selector.Name == "up" {
				return "prometheus"
			}
			return map[string]string{"quorate-apiserver": "apiserver", "quorate-operator-metrics": "operator"}[matcher.Value]
		}
	}
	for prefix, source := range map[string]string{"quorate_": "operator", "kubelet_": "kubelet"} {
		if strings.HasPrefix(selector.Name, prefix) {
			return source
		}
	}
	return ""
}

func selectors(t *testing.T, location, query string) (all []*parser.VectorSelector) {
	t.Helper()
	expression, err := parser.NewParser(parser.Options{}).ParseExpr(strings.ReplaceAll(query, "$__rate_interval", "5m"))
	if err != nil {
		t.Errorf("%s: %s: %v", location, query, err)
		return nil
	}
	parser.Inspect(expression, func(node parser.Node, _ []parser.Node) error {
		if selector, ok := node.(*parser.VectorSelector); ok {
			all = append(all, selector)
		}
		return nil
	})
	return all
}

// dashboard has the fields of Grafana's dashboards that contain queries.
type dashboard struct {
	Title      string
	UID        string
	Templating struct {
		List []struct {
			Name  string
			Query json.RawMessage
		}
	}
	Panels []struct {
		ID      int
		Title   string
		GridPos struct{ X, Y, W, H int }
		Targets []struct{ Expr, LegendFormat string }
	}
}

func dashboards(t *testing.T) (all []dashboard) {
	t.Helper()
	files, err := filepath.Glob(root + "config/monitoring/dashboards/*.json")
	if err != nil || len(files) == 0 {
		t.Fatal("no dashboards", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var d dashboard
		if err := json.Unmarshal(text, &d); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all = append(all, d)
	}
	return all
}

// labelValues is the function of Grafana that lists the values of a variable.
var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

// queries returns the queries of panels and variables.
func (d dashboard) queries() (all []string) {
	for _, panel := range d.Panels {
		for _, target := range panel.Targets {
			all = append(all, target.Expr)
		}
	}
	for _, variable := range d.Templating.List {
		var query struct{ Query string }
		if json.Unmarshal(variable.Query, &query) == nil { // the data source's query is a string
			all = append(all, labelValues.FindStringSubmatch(query.Query)[1])
		}
	}
	return all
}

var (
	placeholder = regexp.MustCompile(`\$\{?(\w+)`)
	legendLabel = regexp.MustCompile(`{{(\w+)}}`)
	grouping    = regexp.MustCompile(`by \(([^)]*)\)`)
)

// TestDashboards checks that variables exist, that legends use labels that aggregations keep, and that panels do not
// overlap.
func TestDashboards(t *testing.T) {
	ids := map[string]bool{}
	for _, d := range dashboards(t) {
		if ids[d.UID] {
			t.Errorf("two dashboards have the identifier %s", d.UID)
		}
		ids[d.UID] = true
		variables := map[string]bool{"__rate_interval": true}
		for _, variable := range d.Templating.List {
			variables[variable.Name] = true
		}
		for _, query := range d.queries() {
			for _, name := range placeholder.FindAllStringSubmatch(query, -1) {
				if !variables[name[1]] {
					t.Errorf("%s: no variable $%s for %s", d.Title, name[1], query)
				}
			}
		}
		d.checkPanels(t)
	}
}

func (d dashboard) checkPanels(t *testing.T) {
	t.Helper()
	cells, panelIDs := map[[2]int]string{}, map[int]bool{}
	for _, panel := range d.Panels {
		if panelIDs[panel.ID] {
			t.Errorf("%s: two panels have the identifier %d", d.Title, panel.ID)
		}
		panelIDs[panel.ID] = true
		for x := range panel.GridPos.W {
			for y := range panel.GridPos.H {
				cell := [2]int{panel.GridPos.X + x, panel.GridPos.Y + y}
				if cells[cell] != "" || cell[0] >= 24 {
					t.Errorf("%s: panel %q overlaps %q", d.Title, panel.Title, cells[cell])
				}
				cells[cell] = panel.Title
			}
		}
		for _, target := range panel.Targets {
			kept := map[string]bool{}
			for _, by := range grouping.FindAllStringSubmatch(target.Expr, -1) {
				for label := range strings.SplitSeq(by[1], ", ") {
					kept[label] = true
				}
			}
			for _, label := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
				if len(kept) > 0 && !kept[label[1]] {
					t.Errorf("%s: the legend of %q has the label %s; the query keeps %v", d.Title, panel.Title, label[1],
						slices.Sorted(maps.Keys(kept)))
				}
			}
		}
	}
}
