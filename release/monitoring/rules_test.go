package main

import (
	"strings"
	"testing"
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
