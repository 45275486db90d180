package writelimit

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	clocktesting "k8s.io/utils/clock/testing"
)

func newLimiter(limit Limit) (*Limiter, *clocktesting.FakeClock) {
	clock := clocktesting.NewFakeClock(time.Unix(1_000_000, 0))
	return New(limit, clock, NewCounter("Writes.")), clock
}

// TestTake writes one object at fixed intervals for some time.
func TestTake(t *testing.T) {
	for name, c := range map[string]struct {
		limit     Limit
		every     time.Duration
		attempts  int
		permitted int
	}{
		"at once":            {Limit{Burst: 10, PerHour: 60}, 0, 100, 10},
		"below the rate":     {Limit{Burst: 10, PerHour: 60}, time.Minute, 1000, 1000},
		"an hour at once":    {Limit{Burst: 10, PerHour: 60}, time.Second, 3600, 10 + 59},
		"twice the rate":     {Limit{Burst: 10, PerHour: 60}, 30 * time.Second, 120, 10 + 59},
		"a single token":     {Limit{Burst: 1, PerHour: 3600}, 500 * time.Millisecond, 10, 5},
		"a large burst only": {Limit{Burst: 300, PerHour: 3600}, 0, 10_000, 300},
	} {
		t.Run(name, func(t *testing.T) {
			l, clock := newLimiter(c.limit)
			permitted := 0
			for range c.attempts {
				if l.Take("writer", "object") == nil {
					permitted++
				}
				clock.Step(c.every)
			}
			if permitted != c.permitted {
				t.Errorf("permitted %d of %d writes, want %d", permitted, c.attempts, c.permitted)
			}
		})
	}
}

// Other objects and other writers are not affected, and a refusal says when to try again.
func TestRefusal(t *testing.T) {
	l, clock := newLimiter(Limit{Burst: 2, PerHour: 60})
	for range 2 {
		if err := l.Take("a", "x"); err != nil {
			t.Fatal(err)
		}
	}
	var refused *Error
	if err := l.Take("a", "x"); !errors.As(err, &refused) || refused.After != time.Minute {
		t.Fatalf("third write: %v", err)
	}
	if err := errors.Join(l.Take("b", "x"), l.Take("a", "y")); err != nil {
		t.Errorf("another writer, another object: %v", err)
	}
	clock.Step(refused.After - 1)
	if l.Take("a", "x") == nil {
		t.Error("permitted before the time that the refusal named")
	}
	clock.Step(1)
	if err := l.Take("a", "x"); err != nil {
		t.Errorf("at the time that the refusal named: %v", err)
	}
	for result, want := range map[string]float64{"permitted": 4, "refused": 2} {
		if got := testutil.ToFloat64(l.writes.WithLabelValues("a", result)); got != want {
			t.Errorf("counted %v writes that were %s, want %v", got, result, want)
		}
	}
}

// Concurrent writes do not share a token.
func TestConcurrentTakes(t *testing.T) {
	const burst = 50
	l, _ := newLimiter(Limit{Burst: burst, PerHour: 60})
	var running sync.WaitGroup
	var permitted atomic.Int64
	for range 4 * burst {
		running.Go(func() {
			if l.Take("writer", "object") == nil {
				permitted.Add(1)
			}
		})
	}
	running.Wait()
	if permitted.Load() != burst {
		t.Errorf("permitted %d concurrent writes, want %d", permitted.Load(), burst)
	}
}

// TestManyObjects writes many objects once each, as the deletion of a namespace does. None is refused, and the memory
// for them is released.
func TestManyObjects(t *testing.T) {
	l, clock := newLimiter(Limit{Burst: 1, PerHour: 60})
	for i := range 100_000 {
		if err := l.Take("namespace", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
		clock.Step(time.Second)
	}
	if len(l.full) > 2*minSweep {
		t.Errorf("kept %d buckets, of which at most 60 are not full", len(l.full))
	}
}

func TestNoLimiter(t *testing.T) {
	var none *Limiter
	none.Count("writer")
	if err := none.Take("writer", "object"); err != nil {
		t.Error(err)
	}
}
