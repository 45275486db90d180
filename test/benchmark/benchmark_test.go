package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"quorate.dev/test/measure/samples"
)

func TestLatenciesOfEvents(t *testing.T) {
	begin := time.Now()
	sent := map[int]time.Time{1: begin, 2: begin.Add(10)}
	all := watchers{
		{seen: []event{{1, begin.Add(5)}, {2, begin.Add(30)}}}, {seen: []event{{2, begin.Add(11)}, {1, begin.Add(12)}}},
	}
	if got, want := all.latencies(sent), []time.Duration{5, 20, 1, 12}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := revisionOf(updateConfigMap(41).body); got != 42 {
		t.Errorf("update 41 is of revision %d", got)
	}
}

func TestFinished(t *testing.T) {
	for _, test := range []struct {
		count, fewest, i int
		timeIsUp         bool
		want             bool
	}{
		{10, 0, 9, true, false}, {10, 0, 10, false, true}, {0, 2, 1000, false, false}, {0, 2, 2, true, true},
		{0, 2, 1, true, false},
	} {
		if got := finished(test.count, test.fewest, test.i, test.timeIsUp); got != test.want {
			t.Errorf("%+v: got %v", test, got)
		}
	}
}

func TestParallelRequestsConcernDifferentObjects(t *testing.T) {
	seen := map[int]bool{}
	for i := range objects {
		seen[spread(i)] = true
	}
	if len(seen) != objects {
		t.Errorf("%d of %d objects are visited", len(seen), objects)
	}
}

func TestEveryUpdateChangesSomething(t *testing.T) {
	last := map[string]string{}
	for _, w := range watches() {
		for i := range 2 * w.count { // the first half without watchers, the second half with them
			r := w.request(i)
			if last[r.path] == string(r.body) {
				t.Fatalf("%s: update %d of %s changes nothing", w.name, i, r.path)
			}
			last[r.path] = string(r.body)
		}
	}
}

func TestObjectsHaveTheSizeTheyClaim(t *testing.T) {
	if size := len(samples.JSON(configMap(configMapName(0), 0))); size < 1000 || size > 1100 {
		t.Errorf("a configmap has %d bytes", size)
	}
	// Servers add nearly 2 KB of defaults and managed fields.
	if size := len(samples.Protobuf(pod(podName(0), 0, 0))); size < 800 || size > 1000 {
		t.Errorf("a pod has %d bytes", size)
	}
}

func TestWarmUpStaysElsewhere(t *testing.T) {
	for _, w := range creations() {
		if r := w.request(0).inNamespace(warmUpNamespace); strings.Contains(r.path, namespace) ||
			!strings.Contains(r.path, warmUpNamespace) {
			t.Errorf("%s goes to %s", w.name, r.path)
		}
	}
}

func TestFileName(t *testing.T) {
	if got := fileName("LIST limit=500, JSON"); got != "list-limit-500-json.pprof" {
		t.Errorf("got %q", got)
	}
}

// sample returns a report with one row of each kind.
func sample() Report {
	name, watch := reads()[0].name, watches()[0].name
	return Report{
		Peer: &Results{Ready: 2 * time.Second, IdleMemory: 315 << 20, LoadedMemory: 660 << 20,
			Work: map[string]Measurement{
				name: {CPU: 300 * time.Millisecond, P50: time.Second, P99: 2 * time.Second}, watch: {CPU: 20 * time.Microsecond},
			},
			Definitions: &DefinitionResults{Live: 480 << 10, Polled: 80 * time.Millisecond}},
		Ours: &Results{Ready: time.Second, IdleMemory: 105 << 20, LoadedMemory: 264 << 20,
			Work: map[string]Measurement{
				name: {CPU: 30 * time.Millisecond, P50: 15 * time.Microsecond, P99: time.Millisecond}, watch: {CPU: 0},
			},
			Definitions: &DefinitionResults{Live: 60 << 10, Polled: 16 * time.Millisecond}},
	}
}

func TestMarkdown(t *testing.T) {
	report := sample()
	text := report.markdown()
	for _, want := range []string{
		"| LIST 5,000 pods, JSON | 300 ms | 30.00 ms | 1/10 | ≤ 1/5 | 1.00 s | 15.0 µs |",
		"| " + watches()[0].name + " | 20.0 µs | noise |  |  |  |  |",
		"| resident, idle | 315 MiB | 105 MiB | 1/3 | ≤ 140 MiB, ≤ 1/2 |",
		"| from exec to ready, new data directory | 2.00 s | 1.00 s | 1/2 | ≤ 1.20 s, ≤ 1/2 |",
		"| live memory for each | 480 KiB | 60 KiB | 1/8 | ≤ 80 KiB, ≤ 1/4 |",
		"| CPU for one more, with clients of discovery and OpenAPI v3 | 80.00 ms | 16.00 ms | 1/5 | ≤ 1/3 |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %s in\n%s", want, text)
		}
	}
	if strings.Contains(text, "GET a pod") || strings.Contains(text, "overload") {
		t.Errorf("rows that were not measured:\n%s", text)
	}
	alone := Report{Ours: report.Ours}.markdown()
	if !strings.Contains(alone, "| resident, idle | not run | 105 MiB |  | ≤ 140 MiB, ≤ 1/2 |") {
		t.Errorf("one server alone:\n%s", alone)
	}
}

func TestParseHeap(t *testing.T) {
	if live, err := parseHeap("heap profile\n# Alloc = 1\n# HeapAlloc = 4096\n"); err != nil || live != 4096 {
		t.Errorf("%d, %v", live, err)
	}
}

// TestFloorAndOrder prints the columns of the floor if it was measured, and first the rows that the peer wins.
func TestFloorAndOrder(t *testing.T) {
	report := sample()
	lost := reads()[3].name
	report.Peer.Work[lost] = Measurement{CPU: time.Millisecond}
	report.Ours.Work[lost] = Measurement{CPU: 1200 * time.Microsecond}
	report.Floor = &Results{Work: map[string]Measurement{reads()[0].name: {CPU: 20 * time.Millisecond}}}
	text := report.markdown()
	first := "| --: |\n| " + lost + " | 1.00 ms | 1.20 ms | 1.2 | ≤ 1/5 |  |  |  |  |\n"
	second := "| LIST 5,000 pods, JSON | 300 ms | 30.00 ms | 1/10 | ≤ 1/5 | 20.00 ms | 1.5 | 1.00 s | 15.0 µs |\n"
	if !strings.Contains(text, first+second) {
		t.Errorf("got\n%s", text)
	}
}
