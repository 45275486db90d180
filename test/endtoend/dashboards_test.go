package endtoend

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"
)

// emptyPanel is a dashboard panel whose queries have no results in a sandbox.
type emptyPanel struct {
	Dashboard string `json:"dashboard"`
	Panel     string `json:"panel"`
	Reason    string `json:"reason"`
}

// labelValues matches Grafana's function that lists the values of a label.
var labelValues = regexp.MustCompile(`^label_values\((.+), (\w+)\)$`)

// panelQuery is a query of a dashboard panel.
type panelQuery struct{ dashboard, panel, expression string }

func (p *prometheus) panelQueries() (all []panelQuery) {
	p.s.t.Helper()
	for _, file := range must(filepath.Glob(monitoring + "dashboards/*.json"))(p.s.t) {
		var d struct {
			Title  string
			Panels []struct {
				Title   string
				Targets []struct{ Expr string }
			}
			Templating struct {
				List []struct {
					Name  string
					Query json.RawMessage // an object, except for the data source
				}
			}
		}
		check(p.s.t, json.Unmarshal(must(os.ReadFile(file))(p.s.t), &d))
		for _, panel := range d.Panels {
			for _, target := range panel.Targets {
				all = append(all, panelQuery{d.Title, panel.Title, target.Expr})
			}
		}
		for _, variable := range d.Templating.List {
			var query struct{ Query string }
			if json.Unmarshal(variable.Query, &query) == nil {
				expression := labelValues.ReplaceAllString(query.Query, "group by ($2) ($1)")
				all = append(all, panelQuery{d.Title, "variable " + variable.Name, expression})
			}
		}
	}
	if len(all) == 0 {
		p.s.t.Fatal("the dashboards have no queries")
	}
	return append(all, p.mixinQueries()...)
}

const mixins = "upstream's mixins"

// mixinQueries select the series that kubernetes-mixin and etcd-mixin need, with their labels.
func (p *prometheus) mixinQueries() (all []panelQuery) {
	p.s.t.Helper()
	text := string(must(os.ReadFile("../metrics/testdata/mixins.txt"))(p.s.t))
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if fields[0] == "#" {
			continue
		}
		selector := `job="quorate-apiserver"`
		for _, label := range fields[1:] {
			selector += `,` + label + `!=""`
		}
		all = append(all, panelQuery{mixins, fields[0], fields[0] + "{" + selector + "}"})
	}
	return all
}

// queryDashboards sends the queries of all panels that have returned no result so far.
func (p *prometheus) queryDashboards() {
	p.s.t.Helper()
	rateInterval := max(4*p.interval(), time.Second).String() // as Grafana does
	variables := strings.NewReplacer("$namespace", ".*", "$cluster", ".*", "$pod", ".*", "$__rate_interval", rateInterval)
	for _, q := range p.panelQueries() {
		if !p.answered[q.expression] {
			p.answered[q.expression] = len(p.query(variables.Replace(q.expression))) > 0
		}
	}
}

// checkDashboards checks that all queries have returned results, except for those of known panels.
func (p *prometheus) checkDashboards(empty []emptyPanel) {
	p.s.t.Helper()
	reasons := map[[2]string]string{}
	for _, e := range empty {
		reasons[[2]string{e.Dashboard, e.Panel}] = e.Reason
	}
	for _, q := range p.panelQueries() {
		panel := [2]string{q.dashboard, q.panel}
		switch {
		case !p.answered[q.expression] && reasons[panel] == "":
			p.s.t.Errorf("panel %q had no result for %s", panel, q.expression)
		case p.answered[q.expression] && reasons[panel] != "":
			p.s.t.Errorf("panel %q has a result; testdata/alerts.yaml says %q", panel, reasons[panel])
		}
	}
}
