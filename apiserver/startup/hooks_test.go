package startup

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"quorate.dev/panics"
)

// hooks returns hooks that are expected to be valid.
func hooks(t *testing.T, sequence Sequence, reporter *panics.Reporter) *Hooks {
	t.Helper()
	h, err := New(sequence, reporter)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func TestHooksRunAfterTheirDependencies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var order []string
		proceed := make(chan struct{})
		h := hooks(t, Sequence{
			{Name: "second", After: []string{"first"}, Run: func(context.Context, func()) error {
				order = append(order, "second")
				return nil
			}},
			{Name: "first", Run: func(ctx context.Context, done func()) error {
				<-proceed
				order = append(order, "first")
				done()
				<-ctx.Done()
				return ctx.Err()
			}},
		}, nil)
		ctx, cancel := context.WithCancel(t.Context())
		work := &errgroup.Group{}
		h.Start(ctx, ctx, work)
		synctest.Wait()
		if len(order) > 0 {
			t.Errorf("ran %v before the dependency was done", order)
		}
		close(proceed)
		synctest.Wait()
		if want := []string{"first", "second"}; !slices.Equal(order, want) {
			t.Errorf("ran %v, want %v", order, want)
		}
		cancel()
		if err := work.Wait(); err != nil {
			t.Errorf("the end of the context is reported as %v", err)
		}
	})
}

func TestHookThatFails(t *testing.T) {
	failure := errors.New("broken")
	h := hooks(t, Sequence{{Name: "a", Run: func(context.Context, func()) error { return failure }}}, nil)
	work := &errgroup.Group{}
	h.Start(t.Context(), t.Context(), work)
	if err := work.Wait(); !errors.Is(err, failure) || !strings.Contains(err.Error(), "hook a") {
		t.Errorf("got %v", err)
	}
	if h.Done("a").Reached() {
		t.Error("a hook that failed is done")
	}
}

func TestHooksThatHoldLeasesEndFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		untilEnd := func(ctx context.Context, _ func()) error {
			<-ctx.Done()
			return nil
		}
		h := hooks(t, Sequence{{Name: "lease", Leases: true, Run: untilEnd}, {Name: "other", Run: untilEnd}}, nil)
		background, stop := context.WithCancel(t.Context())
		leasing, release := context.WithCancel(background)
		work := &errgroup.Group{}
		h.Start(background, leasing, work)
		release()
		<-h.Released()
		synctest.Wait()
		if Signal(h.ended["other"]).Reached() {
			t.Error("background work ended with the leases")
		}
		stop()
		if err := work.Wait(); err != nil {
			t.Error(err)
		}
	})
}

func TestHooksThatPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		registry := prometheus.NewRegistry()
		reporter := panics.NewReporter(registry, clock.RealClock{}, logr.Discard())
		calls := 0
		h := hooks(t, Sequence{
			{Name: "restarts", Restarts: true, Run: func(ctx context.Context, done func()) error {
				done()
				if calls++; calls == 1 {
					panic("once")
				}
				<-ctx.Done()
				return nil
			}},
			{Name: "ends", After: []string{"restarts"}, Run: func(ctx context.Context, _ func()) error {
				<-time.After(time.Minute) // of the fake clock: the other hook has restarted
				return Together(ctx, func(context.Context) error { panic("final") }, func(ctx context.Context) error {
					<-ctx.Done()
					return nil
				})
			}},
		}, reporter)
		work, ctx := errgroup.WithContext(t.Context())
		h.Start(ctx, ctx, work)
		if err := work.Wait(); err == nil || !strings.Contains(err.Error(), "hook ends: panic: final") {
			t.Errorf("got %v", err)
		}
		if calls != 2 {
			t.Errorf("a hook that restarts was called %d times, want 2", calls)
		}
		if n, err := testutil.GatherAndCount(registry, "quorate_background_panics_total"); n != 2 || err != nil {
			t.Errorf("%d series, %v", n, err)
		}
	})
}

// TestWaves checks the printed order of a sequence, and the errors of sequences that could never run.
func TestWaves(t *testing.T) {
	valid := Sequence{
		{Name: "last", After: []string{"storage", "informers"}, Check: true}, {
			Name: "informers", After: []string{"storage"}, Restarts: true,
		},
		{Name: "storage", Leases: true},
	}
	const want = `storage [leases]

informers [restarts] after storage

last [check] after storage, informers
`
	if got := valid.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
	for text, invalid := range map[string]Sequence{
		"two hooks are named a":           {{Name: "a"}, {Name: "a"}},
		"a depends on the unknown hook b": {{Name: "a", After: []string{"b"}}},
		"depend on each other: [a b]": {
			{Name: "a", After: []string{"b"}}, {Name: "b", After: []string{"a"}}, {Name: "c"},
		},
		"they depend on each other: [self]": {{Name: "self", After: []string{"self"}}},
	} {
		if _, err := New(invalid, nil); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("got %v, want %q", err, text)
		}
		if !strings.Contains(invalid.String(), text) {
			t.Errorf("%s is printed as %s", text, invalid)
		}
	}
}
