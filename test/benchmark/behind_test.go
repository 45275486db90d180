package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// pair returns a report with one row for each server. The rounds of each are ratios to 1 ms.
func pair(name string, peer, ours []float64) Report {
	measurement := func(ratios []float64) Measurement {
		var m Measurement
		for _, ratio := range ratios {
			m.Rounds = append(m.Rounds, time.Duration(ratio*float64(time.Millisecond)))
		}
		m.CPU = median(m.Rounds)
		return m
	}
	results := func(ratios []float64) *Results {
		return &Results{Work: map[string]Measurement{name: measurement(ratios)}}
	}
	return Report{Peer: results(peer), Ours: results(ours)}
}

func TestCompare(t *testing.T) {
	name, watch := reads()[0].name, watches()[0].name
	recorded := pair(name, []float64{1}, []float64{0.2})
	same := []float64{1, 1, 1, 1, 1}
	onlyOurs := Report{Ours: recorded.Ours}
	for _, test := range []struct {
		what               string
		measured, recorded Report
		compared           int
		behind, skipped    string // the only line of each contains this
	}{
		{"equal", pair(name, same, []float64{0.2, 0.2, 0.2, 0.2, 0.2}), recorded, 1, "", ""},
		{"exactly at the limit", pair(name, same, []float64{0.23, 0.23, 0.23, 0.23, 0.23}), recorded, 1, "", ""},
		{"cheaper", pair(name, same, []float64{0.1, 0.1, 0.1, 0.1, 0.1}), recorded, 1, "", ""},
		{
			"above the limit", pair(name, same, []float64{0.24, 0.25, 0.24, 0.2, 0.24}), recorded, 1,
			name + ": 0.240 of the peer's CPU time (240.0 µs, the peer's is 1.00 ms), recorded is 0.200: +20 %; " +
				"in 5 rounds 1/5 to 1/4", "",
		},
		{"one outlier", pair(name, same, []float64{0.2, 2, 0.2, 0.2, 0.2}), recorded, 1, "", ""},
		{
			"load in the same rounds of both", pair(name, []float64{1, 1, 1, 9, 9}, []float64{0.2, 0.2, 0.2, 1.8, 1.8}),
			recorded, 1, "", "",
		},
		{"one round", pair(name, []float64{1}, []float64{0.3}), recorded, 1, "recorded is 0.200: +50 %", ""},
		{"noise", pair(name, same, []float64{-0.2, -0.1, -0.1, 0.2, 0.2}), recorded, 0, "", name + ": the cost is noise"},
		{
			"noise was recorded", pair(name, same, same), pair(name, []float64{1}, []float64{0}), 0, "",
			name + ": the recorded cost is noise",
		},
		{"not recorded", pair(name, same, same), Report{}, 0, "", name + ": not recorded for both servers"},
		{"recorded for one server", pair(name, same, same), onlyOurs, 0, "", name + ": not recorded for both servers"},
		{"not measured", Report{Peer: &Results{}, Ours: &Results{}}, recorded, 0, "", ""},
		{"measured on one server", onlyOurs, recorded, 0, "", ""},
		{"one row of watches", pair(watch, same, same), pair(watch, []float64{1}, []float64{0.2}), 0, "", ""},
	} {
		c := test.measured.compare(test.recorded)
		if len(c.compared) != test.compared {
			t.Errorf("%s: compared %q, want %d", test.what, c.compared, test.compared)
		}
		expectLine(t, test.what+": behind", c.behind, test.behind)
		expectLine(t, test.what+": skipped", c.skipped, test.skipped)
	}
}

// expectLine checks that the only line contains a text, or that there is none if the text is empty.
func expectLine(t *testing.T, what string, lines []string, text string) {
	t.Helper()
	if text == "" && len(lines) > 0 || text != "" && (len(lines) != 1 || !strings.Contains(lines[0], text)) {
		t.Errorf("%s: got %q, want %q", what, lines, text)
	}
}

// TestRecordedIsNotBehindItself checks that all recorded rows are compared, except the single rows of watches and rows
// that were not measured on kube-apiserver.
func TestRecordedIsNotBehindItself(t *testing.T) {
	report, err := load(recorded)
	if err != nil {
		t.Fatal(err)
	}
	c := report.compare(report)
	if len(c.behind) != 0 || len(c.skipped) != 0 {
		t.Errorf("behind: %q, skipped: %q", c.behind, c.skipped)
	}
	for _, w := range append(allWorks(), encryptions()...) {
		if slices.Contains(c.compared, w.name) != (w.watchers == 0) {
			t.Errorf("%s: compared: %t", w.name, w.watchers != 0)
		}
	}
}

func TestCheckBehindNeedsARow(t *testing.T) {
	o := &options{behind: recorded}
	if err := o.checkBehind(Report{}, Report{}); err == nil || !strings.Contains(err.Error(), "nothing was compared") {
		t.Errorf("got %v", err)
	}
	name := reads()[0].name
	slow := pair(name, []float64{1}, []float64{0.3})
	if err := o.checkBehind(slow, slow); err != nil {
		t.Errorf("equal: got %v", err)
	}
	err := o.checkBehind(slow, pair(name, []float64{1}, []float64{0.2}))
	want := "1 of 1 compared rows\n" + name
	if err == nil || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), remedy) {
		t.Errorf("behind: got %v", err)
	}
}

// TestDocumentsQuoteTheLimit checks that the documents and the help of make state behindLimit.
func TestDocumentsQuoteTheLimit(t *testing.T) {
	want := fmt.Sprintf("more than %.0f %% behind its recorded ratio", 100*behindLimit)
	for _, file := range []string{"docs/performance.md", "CONTRIBUTING.md", "Makefile"} {
		text, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil || !strings.Contains(string(text), want) {
			t.Errorf("%s does not say %q: %v", file, want, err)
		}
	}
}
