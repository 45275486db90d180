package prometheus

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/promql/promqltest"
	"github.com/prometheus/prometheus/rules"
)

const (
	root     = "../../"
	ruleFile = root + "config/monitoring/rules.yaml"
)

// TestRules evaluates all rules on the series of a healthy cluster, some of which a scenario replaces, and compares
// all firing alerts, so that a fault raises its alert and no other.
func TestRules(t *testing.T) {
	for _, s := range scenarios {
		t.Run(s.name, func(t *testing.T) {
			got := evaluate(t, s.series, slices.Max(slices.Collect(maps.Keys(s.firing))))
			for at, want := range s.firing {
				slices.Sort(want)
				if !slices.Equal(got[at], want) {
					t.Errorf("after %v the alerts are\n\t%s\nwant\n\t%s", at, strings.Join(got[at], "\n\t"),
						strings.Join(want, "\n\t"))
				}
			}
		})
	}
}

// TestAlertsAreTested checks that a scenario fires each alert with each of its severities, and that each alert has a
// runbook.
func TestAlertsAreTested(t *testing.T) {
	fired := map[string]bool{}
	for _, s := range scenarios {
		for _, alerts := range s.firing {
			for _, alert := range alerts {
				name, rest, _ := strings.Cut(alert, "{")
				_, severity, _ := strings.Cut(rest, `severity="`)
				severity, _, _ = strings.Cut(severity, `"`)
				fired[name+" "+severity] = true
			}
		}
	}
	for _, rule := range alertingRules(t) {
		name := rule.Name()
		if severity := rule.Labels().Get("severity"); !fired[name+" "+severity] {
			t.Errorf("no scenario fires %s with severity %s", name, severity)
		}
		if got, want := rule.Annotations().Get("runbook_url"), "https://quorate.dev/docs/runbooks/"+name+".md"; got != want {
			t.Errorf("%s has the runbook %s, want %s", name, got, want)
		}
		if _, err := os.Stat(filepath.Join(root, "docs/runbooks", name+".md")); err != nil {
			t.Error(err)
		}
	}
}

func TestRunbooksHaveAlerts(t *testing.T) {
	files, err := filepath.Glob(root + "docs/runbooks/*.md")
	if err != nil || len(files) == 0 {
		t.Fatal("no runbooks", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".md")
		if name != "README" &&
			!slices.ContainsFunc(alertingRules(t), func(r *rules.AlertingRule) bool { return r.Name() == name }) {
			t.Errorf("%s describes no alert", file)
		}
	}
}

// evaluate returns the firing alerts at each minute until end, or every five minutes of a long period. series replace
// those of a healthy cluster. An alert is identified by its name, labels and description.
func evaluate(t *testing.T, series map[string]string, end time.Duration) map[time.Duration][]string {
	t.Helper()
	suite, groups := load(t, series, end)
	firing := map[time.Duration][]string{}
	interval := time.Minute
	if end > 90*time.Minute {
		interval = 5 * time.Minute
	}
	for at := time.Duration(0); at <= end; at += interval {
		now := time.Unix(0, 0).UTC().Add(at)
		suite.WithSamplesTill(now, func(err error) {
			if err != nil {
				t.Fatal(err)
			}
			for _, group := range groups {
				group.Eval(suite.Context(), now)
				for _, rule := range group.Rules() {
					if err := rule.LastError(); err != nil {
						t.Fatalf("%s after %v: %v", rule.Name(), at, err)
					}
					firing[at] = append(firing[at], describe(rule)...)
				}
			}
		})
		slices.Sort(firing[at])
	}
	return firing
}

// load returns a storage with the series, one sample per minute, and the rule groups to evaluate on it.
func load(t *testing.T, series map[string]string, end time.Duration) (*promqltest.LazyLoader, []*rules.Group) {
	t.Helper()
	all := maps.Clone(healthy)
	maps.Copy(all, series)
	input := "load 1m\n"
	for name, values := range all {
		input += fmt.Sprintf("  %s %s\n", name, strings.ReplaceAll(values, "xN", fmt.Sprintf("x%d", int(end.Minutes()))))
	}
	suite, err := promqltest.NewLazyLoader(input, promqltest.LazyLoaderOpts{
		EnableAtModifier: true, EnableNegativeOffset: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := suite.Close(); err != nil {
			t.Error(err)
		}
	})
	manager := rules.NewManager(&rules.ManagerOptions{
		QueryFunc:    rules.EngineQueryFunc(suite.QueryEngine(), suite.Storage()),
		AppendableV2: suite.Storage(), Queryable: suite.Storage(), Context: suite.Context(),
		NotifyFunc: func(context.Context, string, ...*rules.Alert) {}, Logger: slog.New(slog.DiscardHandler),
		Parser: parser.NewParser(parser.Options{}),
	})
	byName, errs := manager.LoadGroups(time.Minute, labels.EmptyLabels(), "", nil, false, ruleFile)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	return suite, slices.Collect(maps.Values(byName))
}

// describe returns the firing alerts of a rule.
func describe(rule rules.Rule) (alerts []string) {
	alerting, ok := rule.(*rules.AlertingRule)
	if !ok {
		return nil
	}
	alerting.SetRestored(true)
	for _, alert := range alerting.ActiveAlerts() {
		if alert.State == rules.StateFiring {
			set := labels.NewBuilder(alert.Labels).Del(labels.AlertName).Labels()
			alerts = append(alerts, fmt.Sprintf("%s%s %s", alerting.Name(), set, alert.Annotations.Get("description")))
		}
	}
	return alerts
}

func alertingRules(t *testing.T) (all []*rules.AlertingRule) {
	t.Helper()
	_, groups := load(t, nil, 0)
	for _, group := range groups {
		for _, rule := range group.Rules() {
			if alerting, ok := rule.(*rules.AlertingRule); ok {
				all = append(all, alerting)
			}
		}
	}
	return all
}
