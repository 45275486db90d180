package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

const performance = "../../docs/performance"

func TestHistoryRows(t *testing.T) {
	report := sample()
	name := reads()[0].name
	report.Floor = &Results{Work: map[string]Measurement{name: {CPU: 21 * time.Millisecond}}}
	want := map[string]rowRatio{name: {Ratio: 0.1, Floor: 1.429}} // the row of watches is noise
	if got := report.historyRows(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := (Report{Peer: report.Peer}).historyRows(); len(got) != 0 {
		t.Errorf("the peer alone: got %v", got)
	}
}

// TestAppendHistory checks that entries are sorted by date, and that runs of the same date and commit share one.
func TestAppendHistory(t *testing.T) {
	file := filepath.Join(t.TempDir(), historyFile)
	row := func(name string, ratio float64) map[string]rowRatio { return map[string]rowRatio{name: {Ratio: ratio}} }
	for _, e := range []entry{
		{"2026-11-02", "b", row("reads, \"quoted\"", 0.5)}, {"2026-11-01", "a", row("reads", 0.4)},
		{"2026-11-02", "b", row("writes", 0.25)}, {"2026-11-03", "c", nil},
	} {
		if err := appendHistory(file, e); err != nil {
			t.Fatal(err)
		}
	}
	got, err := loadHistory(file)
	want := history{
		{"2026-11-01", "a", row("reads", 0.4)},
		{"2026-11-02", "b", map[string]rowRatio{"reads, \"quoted\"": {Ratio: 0.5}, "writes": {Ratio: 0.25}}},
	}
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// TestPlotsAreGenerated compares the plots with those that the history has. go run ./test/benchmark --plot
// docs/performance writes them.
func TestPlotsAreGenerated(t *testing.T) {
	h, err := loadHistory(filepath.Join(performance, historyFile))
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(performance, historyFile)); err != nil || !bytes.Equal(text, h.encode()) {
		t.Errorf("%s is not what --history writes: %v", historyFile, err)
	}
	for name, want := range render(h) {
		if got, err := os.ReadFile(filepath.Join(performance, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not generated from %s: run make benchmark-plots (%v)", name, historyFile, err)
		}
	}
}

// TestHistoryHasTheRecordedRows checks that the newest known ratio of each row is the recorded one, so that no results
// are recorded without the history.
func TestHistoryHasTheRecordedRows(t *testing.T) {
	h, err := loadHistory(filepath.Join(performance, historyFile))
	if err != nil {
		t.Fatal(err)
	}
	report, err := load(recorded)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range report.historyRows() {
		var newest rowRatio
		for _, e := range h {
			if row, ok := e.Rows[name]; ok {
				newest = row
			}
		}
		if newest != want {
			t.Errorf("%s: %+v is the newest in the history, recorded is %+v", name, newest, want)
		}
	}
}

// TestPlottedRowsExist checks the names of the rows in plots, and that the recorded results have a value for each.
func TestPlottedRowsExist(t *testing.T) {
	report, err := load(recorded)
	if err != nil {
		t.Fatal(err)
	}
	rows := report.historyRows()
	for _, p := range plots() {
		for _, name := range p.rows {
			if p.value(rows[name]) <= 0 {
				t.Errorf("%s: no value of %s is recorded", p.file, name)
			}
		}
	}
}

func TestLinesLeaveOutEntriesWithoutValues(t *testing.T) {
	p := plot{rows: []string{"a", "b"}, value: func(r rowRatio) float64 { return r.Ratio }}
	h := history{
		{Date: "1", Rows: map[string]rowRatio{"a": {Ratio: 2}}}, {Date: "2", Rows: map[string]rowRatio{"c": {Ratio: 2}}},
		{Date: "3", Rows: map[string]rowRatio{"b": {Ratio: 3}, "a": {Floor: 7}}},
	}
	shown, lines := p.lines(h)
	if len(shown) != 2 || shown[1].Date != "3" {
		t.Errorf("entries: %v", shown)
	}
	want := []line{{"a", []float64{2, 0}}, {"b", []float64{0, 3}}}
	if !reflect.DeepEqual(lines, want) || lines[0].last() != 2 {
		t.Errorf("got %v, want %v", lines, want)
	}
}

func TestTicks(t *testing.T) {
	for _, test := range []struct {
		least, most float64
		want        []float64
	}{
		{0.8, 4, []float64{0.7, 1, 1.5, 2, 3, 5}}, {1, 2, []float64{1, 1.5, 2, 3}}, {12, 13, []float64{10, 15}},
	} {
		if got := ticks(test.least, test.most); !slices.Equal(got, test.want) {
			t.Errorf("%v to %v: got %v, want %v", test.least, test.most, got, test.want)
		}
	}
}

// TestRenderAnyHistory checks that plots are well-formed XML without infinite positions, also of a short and of a long
// history.
func TestRenderAnyHistory(t *testing.T) {
	row := map[string]rowRatio{reads()[0].name: {Ratio: 0.1, Floor: 2}}
	for what, h := range map[string]history{
		"no entry": nil, "one entry": {{Date: "2026-11-01", Commit: "<a&b>", Rows: row}},
		"many entries": slices.Repeat(history{{Date: "2026-11-01", Rows: row}}, 50),
	} {
		for name, svg := range render(h) {
			if strings.Contains(string(svg), "NaN") || strings.Contains(string(svg), "Inf") {
				t.Errorf("%s: %s has a position that is no number", what, name)
			}
			decoder := xml.NewDecoder(bytes.NewReader(svg))
			var err error
			for err == nil {
				_, err = decoder.Token()
			}
			if !errors.Is(err, io.EOF) {
				t.Errorf("%s: %s is no XML: %v", what, name, err)
			}
			if dates := strings.Count(string(svg), ">2026-11-01</text>"); dates > mostDates {
				t.Errorf("%s: %s has %d dates", what, name, dates)
			}
		}
	}
}
