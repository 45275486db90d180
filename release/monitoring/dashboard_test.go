package main

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// TestPanelsAreLaidOutInRows checks the positions of panels in Grafana's grid: three panels side by side, and a row
// below the panels of the row above.
func TestPanelsAreLaidOutInRows(t *testing.T) {
	panels := func(titles ...string) (all []panel) {
		for _, title := range titles {
			all = append(all, one(title, short, "up"))
		}
		return all
	}
	d := dashboard{rows: []row{
		{"first", panels("a", "b", "c", "d")}, {"empty", nil}, {"last", panels("e")},
	}}
	var got []string
	for _, p := range d.panels() {
		position := p["gridPos"].(object)
		got = append(got, fmt.Sprintf("%v %v %v,%v %vx%v", p["id"], p["title"], position["x"], position["y"], position["w"],
			position["h"]))
	}
	want := []string{
		"1 first 0,0 24x1", "2 a 0,1 8x8", "3 b 8,1 8x8", "4 c 16,1 8x8", "5 d 0,9 8x8",
		"6 empty 0,17 24x1", "7 last 0,18 24x1", "8 e 0,19 8x8",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestQueriesFollowTheVariables checks that each query of a dashboard reads only the clusters and volumes that the user
// has selected in the variables of the dashboard, or metrics of the operator itself.
func TestQueriesFollowTheVariables(t *testing.T) {
	for _, d := range dashboards() {
		for _, r := range d.rows {
			for _, p := range r.panels {
				for _, q := range p.queries {
					if !strings.Contains(q.expr, `namespace=~"$namespace"`) && !strings.Contains(q.expr, operatorJob) {
						t.Errorf("%s, %s: %s reads all clusters", d.title, p.title, q.expr)
					}
				}
			}
		}
	}
}
