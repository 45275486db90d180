package schedule

import (
	"slices"
	"testing"
	"time"
)

var setting = Setting{
	Replicas: 3, Duration: time.Minute, Disks: true, Lying: true, Network: true, Packets: true, Memory: true,
}

// TestReplay: a seed has one schedule, which can be printed and parsed.
func TestReplay(t *testing.T) {
	kinds := map[string]bool{}
	for seed := range uint64(100) {
		s := Generate(seed, setting)
		if again := Generate(seed, setting); again.String() != s.String() {
			t.Fatalf("seed %d has two schedules", seed)
		}
		parsed, err := Parse("// a comment\n\n" + s.String())
		if err != nil || parsed.String() != s.String() {
			t.Fatalf("%v: parsed\n%s\nwant\n%s", err, parsed, s)
		}
		if s.End() > setting.Duration || len(s) < 10 {
			t.Fatalf("%d nemeses until %v", len(s), s.End())
		}
		for _, n := range s {
			kinds[n.Kind] = true
		}
	}
	if len(kinds) != len(makers()) {
		t.Errorf("only %v are chosen", kinds)
	}
}

func TestParseErrors(t *testing.T) {
	for _, line := range []string{"#1 +1s 1s kill", "1 +1s 1s kill 0", "#x +1s 1s kill 0",
		"#1 +1 1s kill 0", "#1 +1s x kill 0",
		"#1 +1s 1s kill 0 x"} {
		if _, err := Parse(line); err == nil {
			t.Errorf("%q is accepted", line)
		}
	}
}

// TestWithout: without disks and proxies, only their faults are left out.
func TestWithout(t *testing.T) {
	possible, others := Kinds(Setting{Replicas: 3})
	if possible != "kill, stop, memory, compact, defragment" || others == "" {
		t.Errorf("%s; %s", possible, others)
	}
}

// TestWithin: nemeses that a setting does not permit are left out of a schedule, and the others stay in order.
func TestWithin(t *testing.T) {
	s := Generate(1, setting)
	if all := s.Within(setting); all.String() != s.String() {
		t.Errorf("a setting that permits all leaves\n%s", all)
	}
	for _, n := range s.Within(Setting{Replicas: 3, Duration: time.Minute, Network: true}) {
		if n.Kind == "packets" || n.Kind == "power-loss" || n.Kind == "ignore-sync" {
			t.Errorf("%s is permitted", n)
		}
	}
}

// TestStretch: a stretched schedule has the same nemeses, later and longer.
func TestStretch(t *testing.T) {
	s := Generate(1, setting)
	slower := s.Stretch(3)
	if len(slower) != len(s) || slower.End() != 3*s.End() || slower[1].At != 3*s[1].At ||
		s.String() != Generate(1, setting).String() {
		t.Errorf("stretched to\n%s", slower)
	}
}

// TestShrink finds the nemeses that a failure needs.
func TestShrink(t *testing.T) {
	s := Generate(1, setting)
	needed := []int{s[3].ID, s[len(s)/2].ID, s[len(s)-1].ID}
	calls := 0
	got := Shrink(s, 1000, func(s Schedule) bool {
		calls++
		for _, id := range needed {
			if !slices.ContainsFunc(s, func(n Nemesis) bool { return n.ID == id }) {
				return false
			}
		}
		return true
	})
	if len(got) != 3 || calls > 100 {
		t.Errorf("%d calls:\n%s", calls, got)
	}
	if got := Shrink(s, 1000, func(Schedule) bool { return true }); len(got) != 0 {
		t.Errorf("shrunk to\n%s", got)
	}
	if got := Shrink(s, 1000, func(Schedule) bool { return false }); len(got) != len(s) {
		t.Errorf("shrunk to\n%s", got)
	}
}
