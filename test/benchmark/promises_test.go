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

func TestBrokenPromises(t *testing.T) {
	name := reads()[0].name
	set := func(m Measurement) func(*Report) { return func(r *Report) { r.Ours.Work[name] = m } }
	for _, test := range []struct {
		what   string
		change func(*Report)
		want   string
	}{
		{
			"CPU time", set(Measurement{CPU: 75 * time.Millisecond}),
			name + ": 75.00 ms of CPU time, the peer's is 300 ms; promised is 1/5 of it",
		},
		{"noise", set(Measurement{}), name + ": noise of CPU time, the peer's is 300 ms; promised is 1/5 of it"},
		{
			"latency", set(Measurement{CPU: time.Millisecond, P50: 2 * time.Second}),
			name + ": the median latency is 2.00 s, the peer's is 1.00 s",
		},
		{"memory", func(r *Report) { r.Ours.IdleMemory = 141 << 20 }, "resident, idle: 141 MiB, promised is 140 MiB"},
		{
			"fraction of memory", func(r *Report) { r.Peer.IdleMemory = 200 << 20 },
			"resident, idle: 105 MiB, the peer's is 200 MiB; promised is 1/2 of it",
		},
		{"lost requests", func(r *Report) {
			r.Ours.Overload = &OverloadResults{Groups: map[string]GroupResults{"node heartbeats": {Lost: 1}}}
		}, "node heartbeats: lost: 1, promised is 0"},
		{"increase", func(r *Report) {
			r.Ours.Work[noExtensions] = Measurement{CPU: 100}
			r.Ours.Work[otherExtensions] = Measurement{CPU: 130}
		}, fmt.Sprintf("%s: 30.0 %% more CPU time than %q, promised are 20 %%", otherExtensions, noExtensions)},
	} {
		kept := sample()
		kept.Ours.LoadedMemory = 200 << 20
		if broken := kept.brokenPromises(); len(broken) != 0 {
			t.Fatalf("promises are broken without a change: %q", broken)
		}
		test.change(&kept)
		if broken := kept.brokenPromises(); !slices.Contains(broken, test.want) {
			t.Errorf("%s: %q, want %q", test.what, broken, test.want)
		}
	}
}

func TestRecordReplacesWhatWasMeasured(t *testing.T) {
	file := filepath.Join(t.TempDir(), "recorded.json")
	first := sample()
	if err := first.record(file); err != nil {
		t.Fatal(err)
	}
	second := Report{Ours: &Results{Work: map[string]Measurement{reads()[1].name: {CPU: time.Second}}}, Peer: &Results{}}
	if err := second.record(file); err != nil {
		t.Fatal(err)
	}
	all, err := load(file)
	if err != nil {
		t.Fatal(err)
	}
	text := all.markdown()
	for _, want := range []string{
		"| 300 ms | 30.00 ms |", "| not run | 1.00 s |", "| 315 MiB | 105 MiB |", "| 480 KiB | 60 KiB |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %s in\n%s", want, text)
		}
	}
}

func TestPart(t *testing.T) {
	for fraction, want := range map[float64]string{
		0.25: "1/4", 1.0 / 4.5: "1/4.5", 1: "1", 1.002: "1", 1.1: "1.1", 1.05: "1.05", 10: "10",
	} {
		if got := part(fraction); got != want {
			t.Errorf("%v: %s, want %s", fraction, got, want)
		}
	}
}

func TestWatchMean(t *testing.T) {
	results := &Results{Work: map[string]Measurement{}}
	for i, w := range watches() {
		results.addWatchMean()
		if _, ok := results.Work[watchMean().name]; ok {
			t.Fatal("a mean of some rows")
		}
		results.Work[w.name] = Measurement{CPU: time.Duration(i), P50: 7}
	}
	results.addWatchMean()
	if m := results.Work[watchMean().name]; m.CPU != time.Duration(len(watches())-1)/2 || m.P50 != 7 {
		t.Errorf("%+v", m)
	}
}

const recorded = "testdata/recorded.json"

// documented returns the tables of the documents, which contain only rows with a promise, by name.
func documented(t *testing.T) map[string]string {
	t.Helper()
	report, err := load(recorded)
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, each := range report.tables() {
		promised := slices.Index(each.Header, "promised")
		each.Rows = slices.DeleteFunc(each.Rows, func(row []string) bool { return row[promised] == "" })
		found[each.Name] = each.Markdown()
	}
	return found
}

// TestDocumentsHaveTheRecordedTables compares the tables between the markers of documents with the recorded results.
// With UPDATE_DOCUMENTS=1, it rewrites the documents.
func TestDocumentsHaveTheRecordedTables(t *testing.T) {
	tables := documented(t)
	seen := map[string]bool{}
	for _, name := range []string{"performance.md", "fairness.md"} {
		file := filepath.Join("../../docs", name)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		updated := string(text)
		for table, markdown := range tables {
			begin, end := fmt.Sprintf("<!-- benchmark: %s -->\n\n", table), "\n<!-- end -->\n"
			before, rest, ok := strings.Cut(updated, begin)
			old, after, ended := strings.Cut(rest, end)
			if !ok || !ended {
				continue
			}
			seen[table] = true
			if old != markdown {
				updated = before + begin + markdown + end + after
				if os.Getenv("UPDATE_DOCUMENTS") == "" {
					t.Errorf("%s: the table %s is not the one recorded:\n%s", file, table, markdown)
				}
			}
		}
		if os.Getenv("UPDATE_DOCUMENTS") != "" {
			if err := os.WriteFile(file, []byte(updated), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	for table := range tables {
		if !seen[table] {
			t.Errorf("no document has the table %s", table)
		}
	}
}

// TestRecordedResults checks that all rows were measured, that the results keep all promises, and that no promise is so
// lax that 2.5 times the recorded cost would keep it.
func TestRecordedResults(t *testing.T) {
	report, err := load(recorded)
	if err != nil {
		t.Fatal(err)
	}
	if broken := report.brokenPromises(); len(broken) != 0 {
		t.Errorf("promises are broken: %q", broken)
	}
	for _, w := range append(allWorks(), encryptions()...) {
		if fraction, ok := report.workFraction(w); w.promise > 0 && (!ok || w.promise > 2.5*fraction) {
			t.Errorf("%s: a fraction of %.3f, measured: %t; promised is %.3f", w.name, fraction, ok, w.promise)
		}
	}
	for _, table := range figureTables() {
		for _, f := range table.rows {
			if !f.known(report.Peer) || !f.known(report.Ours) {
				t.Errorf("%s was not measured", f.name)
			}
		}
	}
}

// TestDocumentsQuotePromises checks that statements in the documents follow from the promises.
func TestDocumentsQuotePromises(t *testing.T) {
	for _, w := range allWorks() {
		most := 0.0
		switch {
		case strings.HasPrefix(w.name, "GET a"):
			most = 1.0 / 4 // README.md, docs/audit.md
		case strings.HasPrefix(w.name, "LIST 5,000 pods"):
			most = 1.0 / 3 // README.md
		case w.name == "create a configmap", w.name == "create a pod":
			most = 0.6 // README.md
		case w.name == watchMean().name:
			most = 1.1 // README.md says about as much
		default:
			continue
		}
		if w.promise == 0 || w.promise > most {
			t.Errorf("%s: promised is %.2f, README.md says %.2f", w.name, w.promise, most)
		}
	}
	if idle := memoryFigures()[0]; idle.promise == 0 || idle.promise > 0.5 {
		t.Errorf("%s: promised is %.2f, README.md says 0.5", idle.name, idle.promise)
	}
}
