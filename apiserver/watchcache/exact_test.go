package watchcache

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"quorate.dev/apiserver/storage"
)

// TestExactStates compares the state at every revision with the objects written up to it. Revisions before the ring
// expire.
func TestExactStates(t *testing.T) {
	const steps = 400
	w := newWorld(t, Options{RingBytes: 200 * (recordOverhead + 8)})
	pods := w.cache("pods")
	w.latest(pods)
	random := rand.New(rand.NewPCG(1, 2))
	objects := map[string]string{}
	states := map[int64]string{}
	for i := range steps {
		path := fmt.Sprint("pods/a/", random.IntN(20))
		data := fmt.Sprint("x;", i)
		var revision int64
		switch _, exists := objects[path]; {
		case !exists:
			revision = w.create(path, data)
			objects[path] = data
		case random.IntN(3) == 0:
			revision = w.delete(path)
			delete(objects, path)
		default:
			revision = w.update(path, data)
			objects[path] = data
		}
		if random.IntN(4) == 0 {
			w.create(fmt.Sprint("others/a/", i), "x;") // a revision at which nothing changes here
			states[revision+1] = written(objects)
		}
		states[revision] = written(objects)
	}
	last := w.latest(pods).Revision()
	floor := pods.ring.floor
	held := 0
	for revision, want := range states {
		snapshot, err := pods.Exact(t.Context(), revision)
		switch {
		case revision < floor:
			if !errors.Is(err, ErrExpired) {
				t.Errorf("revision %d of %d, before %d: got %v", revision, last, floor, err)
			}
			continue
		case err != nil:
			t.Fatal(err)
		}
		held++
		if got := contents(snapshot, "pods/"); got != want || snapshot.Revision() != revision {
			t.Errorf("revision %d: got %s at %d, want %s", revision, got, snapshot.Revision(), want)
		}
	}
	if held < 100 || held > len(states)-100 {
		t.Errorf("%d of %d states are held", held, len(states))
	}
	if got := contents(w.latest(pods), "pods/"); got != written(objects) {
		t.Errorf("the present state has changed: %s", got)
	}
}

// written returns objects in the form of contents.
func written(objects map[string]string) string {
	var lines []string
	for _, path := range slices.Sorted(maps.Keys(objects)) {
		lines = append(lines, path+"@"+objects[path])
	}
	return strings.Join(lines, " ")
}

// TestExactStateIsMadeOnce has many concurrent readers of one past state, which share one Snapshot.
func TestExactStateIsMadeOnce(t *testing.T) {
	w := newWorld(t, Options{})
	pods := w.cache("pods")
	w.latest(pods)
	past := w.create("pods/a/1", "x;")
	w.update("pods/a/1", "y;")
	w.latest(pods)
	var readers sync.WaitGroup
	trees := make([]*tree, 30)
	for i := range trees {
		readers.Go(func() {
			snapshot, err := pods.Exact(t.Context(), past)
			if err != nil {
				t.Error(err)
				return
			}
			trees[i] = snapshot.tree
		})
	}
	readers.Wait()
	if slices.ContainsFunc(trees, func(other *tree) bool { return other != trees[0] }) {
		t.Error("readers of one revision have different trees")
	}
}

// TestExactStateFromHistory reads a state from before the cache was filled, after a watcher has extended the ring.
func TestExactStateFromHistory(t *testing.T) {
	w := newWorld(t, Options{})
	first := w.create("pods/a/1", "x;")
	second := w.create("pods/a/2", "x;")
	w.delete("pods/a/1")
	pods := w.cache("pods")
	w.latest(pods)
	if _, err := pods.Exact(t.Context(), second); !errors.Is(err, ErrExpired) {
		t.Errorf("without its events: %v", err)
	}
	w.expect(w.watch(pods, first, Scope{}), "ADDED pods/a/2@x;", "DELETED pods/a/1@x;")
	snapshot, err := pods.Exact(t.Context(), second)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := contents(snapshot, "pods/"), "pods/a/1@x; pods/a/2@x;"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestExactStateAcrossAGap reads a state from a time whose events the cache has lost.
func TestExactStateAcrossAGap(t *testing.T) {
	w := newStoppedWorld(t, Options{})
	pods := w.cache("pods")
	stop := w.follow(0)
	w.latest(pods)
	seen := w.create("pods/a/1", "x;")
	w.latest(pods)
	stop()
	unseen := w.update("pods/a/1", "y;")
	w.update("pods/a/1", "z;")
	stop = w.follow(0) // as after compaction: the events in between are lost
	defer stop()
	last := w.latest(pods)
	for _, revision := range []int64{seen, unseen} {
		if snapshot, err := pods.Exact(t.Context(), revision); !errors.Is(err, ErrExpired) {
			t.Errorf("revision %d: got %v, %v", revision, snapshot, err)
		}
	}
	if snapshot, err := pods.Exact(t.Context(), last.Revision()); err != nil ||
		contents(snapshot, "pods/") != "pods/a/1@z;" {
		t.Errorf("now: %v, %v", snapshot, err)
	}
}

// TestCompactedStates checks that compacted states expire, even if they are retained or can be derived.
func TestCompactedStates(t *testing.T) {
	w := newWorld(t, Options{})
	pods := w.cache("pods")
	w.latest(pods)
	retained := w.create("pods/a/1", "x;")
	pods.Retain(w.latest(pods))
	past := w.update("pods/a/1", "y;")
	w.update("pods/a/1", "z;")
	w.latest(pods)
	w.caches.Compacted(past)
	w.caches.Compacted(past - 1) // has no effect
	if snapshot, err := pods.Exact(t.Context(), retained); !errors.Is(err, ErrExpired) {
		t.Errorf("before the compaction: %v, %v", snapshot, err)
	}
	snapshot, err := pods.Exact(t.Context(), past)
	if err != nil || contents(snapshot, "pods/") != "pods/a/1@y;" {
		t.Errorf("compacted to: %v, %v", snapshot, err)
	}
	w.expect(w.watch(pods, retained, Scope{}), "MODIFIED pods/a/1@y;", "MODIFIED pods/a/1@z;") // a watch may begin there
}

// TestRetainedHoldsLittle drops a retained snapshot when it alone holds more than the size of a ring.
func TestRetainedHoldsLittle(t *testing.T) {
	const held = 10
	w := newWorld(t, Options{RingBytes: held * (recordOverhead + 2)})
	pods := w.cache("pods")
	w.create("pods/a/1", "x;")
	pods.Retain(w.latest(pods))
	revision := w.latest(pods).Revision()
	for i := range 3 * held {
		w.update("pods/a/1", "y;")
		w.latest(pods)
		pods.sweep(w.caches.clock.Now())
		if _, ok := pods.At(revision); ok != (i < 2*held) {
			t.Fatalf("after %d events the snapshot is there: %v", i+1, ok)
		}
	}
}

// TestExactStopsWithItsCaller checks that Exact returns when its context ends.
func TestExactStopsWithItsCaller(t *testing.T) {
	w := newWorld(t, Options{})
	pods := w.cache("pods")
	w.latest(pods)
	past := w.create("pods/a/1", "x;")
	w.update("pods/a/1", "y;")
	w.latest(pods)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pods.derive(ctx, past); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if _, err := w.store.List(t.Context(), "pods/", storage.ListOptions{Revision: past}); err != nil {
		t.Errorf("the store itself: %v", err)
	}
}

// TestExactStatesWhileThereAreWrites compares past states of the cache with past states of the store during writes.
func TestExactStatesWhileThereAreWrites(t *testing.T) {
	const readers, reads, objects = 4, 25, 30
	w := newWorld(t, Options{})
	pods := w.cache("pods")
	first := w.latest(pods).Revision()
	var latest atomic.Int64
	latest.Store(first)
	ctx, stop := context.WithCancel(t.Context())
	var writing, reading sync.WaitGroup
	writing.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			put, err := w.client.Put(ctx, fmt.Sprint("/registry/pods/a/", i%objects), fmt.Sprint("x;", i))
			if err == nil {
				latest.Store(put.Header.Revision)
			}
			if i%7 == 0 {
				_, _ = w.client.Delete(ctx, fmt.Sprint("/registry/pods/a/", (i/2)%objects))
			}
		}
	})
	for range readers {
		reading.Go(func() {
			for range reads {
				revision := first + rand.Int64N(latest.Load()-first+1)
				snapshot, err := pods.Exact(t.Context(), revision)
				if err != nil {
					t.Error(err)
					return
				}
				page, err := w.store.List(t.Context(), "pods/", storage.ListOptions{Revision: revision})
				if err != nil {
					t.Error(err)
					return
				}
				stored := map[string]string{}
				for _, value := range page.Values {
					stored[value.Path] = string(value.Data)
				}
				if got, want := contents(snapshot, "pods/"), written(stored); got != want {
					t.Errorf("revision %d: got %s, stored %s", revision, got, want)
				}
			}
		})
	}
	reading.Wait()
	stop()
	writing.Wait()
}
