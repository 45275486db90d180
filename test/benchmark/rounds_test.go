package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"quorate.dev/test/measure"
)

// numbered returns a work whose request i has i as its path.
func numbered(count int) work {
	return work{count: count, request: func(i int) request { return request{path: string(rune('a' + i))} }}
}

// TestRoundsSendEachRequestOnce checks that the rounds of a work with a fixed count divide its requests, in order.
func TestRoundsSendEachRequestOnce(t *testing.T) {
	for _, test := range []struct{ count, desired, want int }{{10, 5, 5}, {11, 5, 5}, {3, 5, 3}, {1, 5, 1}, {7, 1, 1}} {
		w := numbered(test.count)
		rounds := w.rounds(test.desired)
		if rounds != test.want {
			t.Errorf("%d requests in %d rounds, want %d", test.count, rounds, test.want)
		}
		sent := ""
		for i := range rounds {
			part := round{w, i, rounds}.part()
			if part.count == 0 {
				t.Errorf("%+v: round %d sends no request", test, i)
			}
			for j := range part.count {
				sent += part.request(j).path
			}
		}
		if want := "abcdefghijklmnop"[:test.count]; sent != want {
			t.Errorf("%+v: the rounds send %s, want %s", test, sent, want)
		}
	}
}

// TestRoundsOfWatches checks that updates without and with watchers differ in all rounds.
func TestRoundsOfWatches(t *testing.T) {
	const rounds = 5
	for _, w := range watches() {
		seen := map[string]bool{}
		for i := range rounds {
			for _, part := range []work{{}, w.repeated()} {
				if part.request == nil {
					part = w
				}
				part = round{part, i, rounds}.part()
				for j := range part.count {
					seen[string(part.request(j).body)] = true
				}
			}
		}
		if len(seen) != 2*w.count {
			t.Errorf("%s: %d different updates, want %d", w.name, len(seen), 2*w.count)
		}
	}
}

func TestRoundsWithoutCountShareTheTime(t *testing.T) {
	w := numbered(0)
	if got := w.rounds(5); got != 5 {
		t.Errorf("%d rounds, want 5", got)
	}
	if got, want := (round{w, 0, 1}.least()), (least{measuringTime, fewestRequests}); got != want {
		t.Errorf("one round: at least %v, want %v", got, want)
	}
	if got, want := (round{w, 4, 5}.least()), (least{measuringTime / 5, 2}); got != want {
		t.Errorf("five rounds: at least %v, want %v", got, want)
	}
}

// TestRoundsContinueIndexes executes the first rounds of a work without a fixed count on a server that does nothing. No
// request may be sent twice, also not by the warm-up, because a write that changes nothing is cheaper.
func TestRoundsContinueIndexes(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has the CPU time of a process")
	}
	var mu sync.Mutex
	received := map[string]int{}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		received[r.URL.Path]++
	}))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	s := &subject{
		Server: &measure.Server{PIDs: []int{os.Getpid()}}, client: &client{host: server.URL, http: server.Client()},
	}
	w := work{parallel: 4, request: func(i int) request {
		return request{method: http.MethodGet, path: fmt.Sprintf("/%d", i)}
	}}
	c := &course{}
	const rounds = 2
	for i := range rounds {
		if err := s.measure(t.Context(), round{w, i, 25}, c); err != nil {
			t.Fatal(err)
		}
	}
	if m := c.summarize(); len(m.Rounds) != rounds || m.Requests >= len(received) || m.CPU <= 0 {
		t.Errorf("%d requests in %d rounds, and the server has received %d", m.Requests, len(m.Rounds), len(received))
	}
	for path, times := range received {
		if times > 1 {
			t.Errorf("%s was sent %d times", path, times)
		}
	}
}

// TestCourse checks that the CPU time is the median of the rounds, and that latencies and bytes are merged.
func TestCourse(t *testing.T) {
	c := courses{}.of(&subject{})
	c.add(&tally{latencies: []time.Duration{30, 10, 20}, bytes: 300}, 90)
	c.add(&tally{latencies: []time.Duration{40}, bytes: 100}, 1000)
	c.add(&tally{latencies: []time.Duration{50}, bytes: 100, indexes: 7}, 40)
	want := Measurement{Requests: 5, Bytes: 100, CPU: 40, P50: 30, P99: 50, Rounds: []time.Duration{30, 1000, 40}}
	if got := c.summarize(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if c.next != 7 {
		t.Errorf("the next request has index %d, want 7", c.next)
	}
}

func TestMedian(t *testing.T) {
	for want, values := range map[float64][]float64{
		3: {3}, 2: {1, 3}, 4: {9, 4, 1}, 5: {100, 4, 1, 6},
	} {
		if got := median(values); got != want {
			t.Errorf("%v: got %v, want %v", values, got, want)
		}
	}
}

// rounds returns a measurement with the CPU times of rounds.
func rounds(used ...time.Duration) Measurement { return Measurement{CPU: median(used), Rounds: used} }

func TestRatios(t *testing.T) {
	for what, test := range map[string]struct {
		one, other Measurement
		want       []float64
	}{
		"pairs":        {rounds(2, 4), rounds(4, 8), []float64{0.5, 0.5}},
		"no rounds":    {Measurement{CPU: 3}, rounds(6), []float64{0.5}},
		"other number": {rounds(3), rounds(4, 4), []float64{0.75}},
		"noisy round":  {rounds(3, 3, -1), rounds(4, 4, 4), []float64{0.75}},
		"noise":        {Measurement{CPU: 3}, Measurement{CPU: -4}, nil},
		"zero":         {Measurement{}, Measurement{CPU: 4}, nil},
	} {
		if got := ratios(test.one, test.other); !slices.Equal(got, test.want) {
			t.Errorf("%s: got %v, want %v", what, got, test.want)
		}
	}
}

// TestMeanOfRounds checks that the mean of rows has rounds if all rows have the same number of them.
func TestMeanOfRounds(t *testing.T) {
	rows := []Measurement{
		{CPU: 4, Rounds: []time.Duration{2, 4, 600}}, {CPU: 8, Rounds: []time.Duration{6, 8, 10}},
	}
	want := Measurement{CPU: 6, Rounds: []time.Duration{4, 6, 305}}
	if got := meanOf(rows); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	rows[1].Rounds = nil
	if got := meanOf(rows); got.CPU != 6 || got.Rounds != nil {
		t.Errorf("a row has no rounds: got %+v", got)
	}
}

// TestSpread checks that the column with the spread appears if a row has several rounds, in addition to the floor's.
func TestSpread(t *testing.T) {
	report := sample()
	if text := report.markdown(); strings.Contains(text, "spread") {
		t.Errorf("no row has rounds:\n%s", text)
	}
	const ms = time.Millisecond
	name := reads()[0].name
	report.Peer.Work[name] = rounds(300*ms, 300*ms, 240*ms)
	report.Ours.Work[name] = rounds(30*ms, 20*ms, 30*ms)
	report.Floor = &Results{Work: map[string]Measurement{name: {CPU: 20 * ms}}}
	text := report.markdown()
	for _, want := range []string{
		"| fraction | spread | promised | floor | times the floor |",
		"| 1/10 | 1/15 to 1/8 | ≤ 1/5 | 20.00 ms | 1.5 |",
		"| noise |  |  |  |  |  |  |  |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %s in\n%s", want, text)
		}
	}
}

func TestParseRounds(t *testing.T) {
	for _, test := range []struct {
		arguments []string
		want      int // 0: an error
	}{
		{nil, defaultRounds}, {[]string{"--rounds=3"}, 3}, {[]string{"--rounds=0"}, 0},
		{[]string{"--profile=directory"}, 1}, {[]string{"--profile=directory", "--rounds=2"}, 2},
	} {
		o, err := parse(test.arguments)
		if (err != nil) != (test.want == 0) || err == nil && o.rounds != test.want {
			t.Errorf("%v: got %+v, %v, want %d rounds", test.arguments, o, err, test.want)
		}
	}
}
