package panics

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	realclock "k8s.io/utils/clock"
	testclock "k8s.io/utils/clock/testing"
)

func TestGroupMovesPanics(t *testing.T) {
	finished := false
	err := Catch(func() error {
		var g Group
		g.Start(func() { panic("first") })
		g.Start(func() { finished = true })
		g.Wait()
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "first") || !finished {
		t.Errorf("got %v, %t", err, finished)
	}
	var g Group
	g.Start(func() {})
	g.Wait()
}

func TestKeepRetriesAfterPanics(t *testing.T) {
	clock := testclock.NewFakeClock(time.Now())
	var lines []string
	registry := prometheus.NewRegistry()
	reporter := NewReporter(registry, clock,
		funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{}))
	failed := errors.New("failed")
	calls := 0
	done := make(chan error)
	go func() {
		done <- reporter.Keep(t.Context(), "loop", func(context.Context) error {
			if calls++; calls < 4 {
				panic("three times")
			}
			return failed
		})
	}()
	for want := firstDelay; want < 8*firstDelay; want *= 2 {
		for !clock.HasWaiters() {
			select {
			case err := <-done:
				t.Fatalf("ended with %v", err)
			case <-time.After(time.Millisecond):
			}
		}
		clock.Step(want)
	}
	if err := <-done; !errors.Is(err, failed) || calls != 4 {
		t.Errorf("got %v after %d calls", err, calls)
	}
	const want = `
# HELP quorate_background_panics_total [ALPHA] Number of panics in background work, by the name of the loop.
# TYPE quorate_background_panics_total counter
quorate_background_panics_total{loop="loop"} 3
`
	if err := testutil.GatherAndCompare(registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
	if len(lines) != 3 || !strings.Contains(lines[0], "three times") || !strings.Contains(lines[0], "reporter_test.go") {
		t.Errorf("got %q", lines)
	}
}

func TestKeepEndsTheContextOfEachCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		reporter := NewReporter(prometheus.NewRegistry(), realclock.RealClock{}, logr.Discard())
		var first context.Context
		err := reporter.Keep(t.Context(), "loop", func(ctx context.Context) error {
			if first == nil {
				first = ctx
				panic("once")
			}
			if first.Err() == nil || ctx.Err() != nil {
				t.Errorf("the contexts of the calls ended with %v and %v", first.Err(), ctx.Err())
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	})
}

func TestKeepEndsWithItsContext(t *testing.T) {
	reporter := NewReporter(prometheus.NewRegistry(), testclock.NewFakeClock(time.Now()),
		funcr.New(func(_, _ string) {}, funcr.Options{}))
	ctx, cancel := context.WithCancel(t.Context())
	err := reporter.Keep(ctx, "loop", func(context.Context) error {
		cancel()
		panic("once")
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
