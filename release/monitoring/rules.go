package main

import (
	"fmt"
	"regexp"
	"time"
)

// Matchers of the label job, which the scrape configurations in config/monitoring and config/samples set.
const (
	apiServerJob = `job="quorate-apiserver"`
	operatorJob  = `job="quorate-operator-metrics"`
)

const runbooks = "https://quorate.dev/docs/runbooks/"

// Severities of alerts: critical needs attention immediately, warning within days.
const (
	critical = "critical"
	warning  = "warning"
)

// groups is the content of a Prometheus rule file, and the spec of a PrometheusRule.
type groups struct {
	Groups []group `json:"groups"`
}

type group struct {
	Name  string `json:"name"`
	Rules []rule `json:"rules"`
}

type rule struct {
	Record      string            `json:"record,omitempty"`
	Alert       string            `json:"alert,omitempty"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func ruleFile() groups {
	return groups{[]group{
		{"quorate-operator", rulesOf(operatorAlerts())},
		{"quorate-cluster", rulesOf(clusterAlerts())},
		{"quorate-certificates", rulesOf(certificateAlerts())},
		{"quorate-backup", rulesOf(backupAlerts())},
		{"quorate-etcd", rulesOf(etcdAlerts())},
		{"quorate-apiserver", rulesOf(apiServerAlerts())},
		{"quorate-slo", objectiveRules()},
	}}
}

func prometheusRule() map[string]any {
	return map[string]any{
		"apiVersion": "monitoring.coreos.com/v1",
		"kind":       "PrometheusRule",
		"metadata": map[string]any{
			"name": "quorate", "labels": map[string]string{"app.kubernetes.io/name": "quorate-operator"},
		},
		"spec": ruleFile(),
	}
}

// alert is an alerting rule. Its name is also the name of its runbook.
type alert struct {
	name, severity string
	expr           string
	wait           string // time for which expr must hold before the alert fires
	summary        string
	description    string            // a template of Prometheus
	labels         map[string]string // labels in addition to severity
}

func (a alert) rule() rule {
	labels := map[string]string{"severity": a.severity}
	for name, value := range a.labels {
		labels[name] = value
	}
	return rule{
		Alert: a.name, Expr: a.expr, For: a.wait, Labels: labels,
		Annotations: map[string]string{
			"summary": a.summary, "description": a.description, "runbook_url": runbooks + a.name + ".md",
		},
	}
}

func rulesOf(alerts []alert) []rule {
	rules := make([]rule, 0, len(alerts))
	for _, a := range alerts {
		rules = append(rules, a.rule())
	}
	return rules
}

// timeRange matches the range of a range selector.
var timeRange = regexp.MustCompile(`\[(\w+)\]`)

// shortestWait is the shortest time before an alert of faster rules fires: on a busy machine, scrapes and rules can be
// late by seconds.
const shortestWait = 10 * time.Second

// faster returns the rules with all ranges and waits divided by speed, but waits of at least shortestWait. Names of
// recorded series, labels and texts keep the original durations.
func (g groups) faster(speed int) groups {
	faster := groups{Groups: make([]group, 0, len(g.Groups))}
	for _, original := range g.Groups {
		rules := make([]rule, 0, len(original.Rules))
		for _, r := range original.Rules {
			r.Expr = timeRange.ReplaceAllStringFunc(r.Expr, func(found string) string {
				return "[" + milliseconds(parse(found[1:len(found)-1])/time.Duration(speed)) + "]"
			})
			if r.For != "" {
				r.For = milliseconds(max(parse(r.For)/time.Duration(speed), shortestWait))
			}
			rules = append(rules, r)
		}
		faster.Groups = append(faster.Groups, group{original.Name, rules})
	}
	return faster
}

// parse parses a duration of Prometheus in minutes, hours or days.
func parse(duration string) time.Duration {
	var n int
	var unit rune
	if _, err := fmt.Sscanf(duration, "%d%c", &n, &unit); err != nil {
		panic(fmt.Errorf("duration %q: %w", duration, err)) // durations are constants of this program
	}
	units := map[rune]time.Duration{'m': time.Minute, 'h': time.Hour, 'd': 24 * time.Hour}
	return time.Duration(n) * units[unit]
}

func milliseconds(d time.Duration) string { return fmt.Sprintf("%dms", d.Milliseconds()) }
