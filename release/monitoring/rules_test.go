package main

import (
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

func TestFaster(t *testing.T) {
	original := groups{[]group{{"a", []rule{
		{Alert: "A", Expr: "rate(a[10m]) > 0 and avg_over_time(b:ratio_rate1h[1h]) > 0", For: "90m"},
		{Record: "b:ratio_rate1h", Expr: "b"}, {Alert: "B", Expr: "b", For: "1m"},
	}}}}
	rules := original.faster(30).Groups[0].Rules
	if want := "rate(a[20000ms]) > 0 and avg_over_time(b:ratio_rate1h[120000ms]) > 0"; rules[0].Expr != want ||
		rules[0].For != "180000ms" {
		t.Errorf("%+v, want the expression %s", rules[0], want)
	}
	if rules[1].Record != "b:ratio_rate1h" || rules[1].Expr != "b" || rules[1].For != "" {
		t.Errorf("%+v", rules[1])
	}
	if rules[2].For != "10000ms" {
		t.Errorf("%+v, want the shortest wait", rules[2])
	}
	for _, group := range ruleFile().faster(30).Groups {
		for _, rule := range group.Rules {
			for _, found := range timeRange.FindAllStringSubmatch(rule.Expr, -1) {
				if !strings.HasSuffix(found[1], "ms") {
					t.Errorf("%s: the range %s is not divided", rule.Expr, found[1])
				}
			}
		}
	}
}

// TestDescriptionsStateTheWait compares the time in the description of an alert, such as "for 10 minutes", with the
// time after which the alert fires.
func TestDescriptionsStateTheWait(t *testing.T) {
	stated := regexp.MustCompile(`for (an?|\d+) (minute|hour)s?\.`)
	found := 0
	for _, group := range ruleFile().Groups {
		for _, rule := range group.Rules {
			match := stated.FindStringSubmatch(rule.Annotations["description"])
			if match == nil {
				continue
			}
			found++
			count, err := strconv.Atoi(match[1])
			if err != nil {
				count = 1
			}
			want := map[string]time.Duration{"minute": time.Minute, "hour": time.Hour}[match[2]] * time.Duration(count)
			if parse(rule.For) != want {
				t.Errorf("%s fires after %s; its description is %q", rule.Alert, rule.For, rule.Annotations["description"])
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d descriptions state a time", found)
	}
}

// TestBurnRates checks the conditions of the alerts for objectives: each condition has a short window of a twelfth of
// the long one, records exist for both windows, and the alerts fire when a tenth of the budget of 30 days is consumed
// at the latest.
func TestBurnRates(t *testing.T) {
	for _, burn := range burnRates {
		if !slices.Contains(windows, burn.long) || !slices.Contains(windows, burn.short) {
			t.Errorf("%+v: no ratio is recorded for a window", burn)
		}
		if parse(burn.long) != 12*parse(burn.short) {
			t.Errorf("%+v: the windows do not fit together", burn)
		}
		if consumed := burn.factor * parse(burn.long).Hours() / (30 * 24); consumed > 0.1+1e-9 {
			t.Errorf("%+v: the alert fires after %.0f%% of the budget", burn, 100*consumed)
		}
	}
	recorded := map[string]bool{}
	for _, rule := range objectiveRules() {
		recorded[rule.Record] = true
	}
	series := regexp.MustCompile(`namespace_cluster:\w+:\w+`)
	for _, rule := range objectiveRules() {
		for _, name := range series.FindAllString(rule.Expr, -1) {
			if !recorded[name] {
				t.Errorf("%s%s: no rule records %s", rule.Record, rule.Alert, name)
			}
		}
	}
}
