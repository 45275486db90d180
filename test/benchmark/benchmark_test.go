package main

import (
	"os"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseStatus(t *testing.T) {
	status := "Name:\tVmRSS:\nVmHWM:\t  2048 kB\nVmRSS:\t  1024 kB\n"
	for figure, want := range map[string]int64{"VmRSS": 1 << 20, "VmHWM": 2 << 20} {
		if got, err := parseStatus(status, figure); err != nil || got != want {
			t.Errorf("%s: got %d, %v", figure, got, err)
		}
	}
	if _, err := parseStatus(status, "VmSwap"); err == nil {
		t.Error("no error for a figure that is not there")
	}
}

func TestOwnProcess(t *testing.T) {
	pids := []int{os.Getpid()}
	before, err := cpu(pids)
	if err != nil || before <= 0 {
		t.Fatalf("cpu %v, %v", before, err)
	}
	for after := before; after <= before; { // this loop uses CPU time itself
		if after, err = cpu(pids); err != nil {
			t.Fatal(err)
		}
	}
	once, err := memory(pids, "VmHWM")
	if err != nil || once < 1<<20 {
		t.Errorf("memory %d, %v", once, err)
	}
	twice, err := memory(append(pids, pids...), "VmHWM")
	if err != nil || twice < 2*once {
		t.Errorf("memory of two processes %d, of one %d, %v", twice, once, err)
	}
}

func TestLatenciesOfEvents(t *testing.T) {
	begin := time.Now()
	sent := map[int]time.Time{1: begin, 2: begin.Add(10)}
	all := watchers{
		{seen: []event{{1, begin.Add(5)}, {2, begin.Add(30)}}}, {seen: []event{{2, begin.Add(11)}, {1, begin.Add(12)}}},
	}
	if got, want := all.latencies(sent), []time.Duration{1, 5, 12, 20}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if got := revisionOf(updateConfigMap(41).body); got != 42 {
		t.Errorf("update 41 is of revision %d", got)
	}
}

func TestQuantile(t *testing.T) {
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(i+1))
	}
	tests := []struct {
		sorted []time.Duration
		q      float64
		want   time.Duration
	}{
		{nil, 0.5, 0}, {hundred[:1], 0.99, 1}, {hundred[:2], 0.5, 1}, {hundred[:3], 0.5, 2},
		{hundred, 0.5, 50}, {hundred, 0.99, 99}, {hundred, 1, 100}, {hundred, 0, 1},
	}
	for _, test := range tests {
		if got := quantile(test.sorted, test.q); got != test.want {
			t.Errorf("quantile %v of %d values: got %d, want %d", test.q, len(test.sorted), got, test.want)
		}
	}
}

func TestSummarize(t *testing.T) {
	done := tally{latencies: []time.Duration{30, 10, 20}, bytes: 300}
	got := done.summarize(90)
	if want := (Measurement{Requests: 3, Bytes: 100, CPU: 30, P50: 20, P99: 30}); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestFinished(t *testing.T) {
	for _, test := range []struct {
		count, i int
		timeIsUp bool
		want     bool
	}{
		{10, 9, true, false}, {10, 10, false, true}, {0, 1000, false, false}, {0, fewestRequests, true, true},
		{0, fewestRequests - 1, true, false},
	} {
		if got := finished(test.count, test.i, test.timeIsUp); got != test.want {
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
	if size := len(toJSON(configMap(configMapName(0), 0))); size < 1000 || size > 1100 {
		t.Errorf("a configmap has %d bytes", size)
	}
	// Servers add nearly 2 KB of defaults and managed fields.
	if size := len(toProtobuf(pod(podName(0), 0))); size < 800 || size > 1000 {
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
		"| LIST 5,000 pods, JSON | 300 ms | 30.00 ms | 1/10 | ≤ 1/7 | 1.00 s | 15.0 µs |",
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
