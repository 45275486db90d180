package follow_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"quorate.dev/apiserver/registry/follow"
)

// waiters are calls of Await, by the revision that they wait for.
type waiters struct {
	progress follow.Progress
	requests int // calls of the function that requests progress
	results  map[int64]chan error
}

// request counts requests. It is called with the lock of the progress held.
func (w *waiters) request() { w.requests++ }

// await starts a call of Await for each revision.
func (w *waiters) await(ctx context.Context, revisions ...int64) {
	w.results = map[int64]chan error{}
	for _, revision := range revisions {
		result := make(chan error, 1)
		w.results[revision] = result
		go func() { result <- w.progress.Await(ctx, revision) }()
	}
	synctest.Wait()
}

// expect checks that exactly the calls for the given revisions have returned since the last check, without an error.
func (w *waiters) expect(t *testing.T, when string, revisions ...int64) {
	t.Helper()
	synctest.Wait()
	want := map[int64]bool{}
	for _, revision := range revisions {
		want[revision] = true
	}
	for revision, result := range w.results {
		select {
		case err := <-result:
			if err != nil || !want[revision] {
				t.Errorf("%s: the call for revision %d has returned, %v", when, revision, err)
			}
			delete(w.results, revision)
		default:
			if want[revision] {
				t.Errorf("%s: the call for revision %d waits", when, revision)
			}
		}
	}
}

// TestAwait waits for several revisions, before, during and between the watches of a follower.
func TestAwait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w waiters
		w.await(t.Context(), 1, 5, 6, 7, 9, 20)
		w.expect(t, "before the first watch")
		w.progress.Begin(5, w.request)
		w.expect(t, "after the initial state", 1, 5)
		w.progress.Advance(6)
		w.expect(t, "after a change", 6)
		w.progress.End()
		w.expect(t, "after the end of the watch")
		w.progress.Advance(30) // no watch has begun, so nothing is known to be handled
		w.expect(t, "between two watches")
		w.progress.Begin(8, w.request)
		w.expect(t, "after the next initial state", 7)
		w.progress.Advance(10)
		w.expect(t, "after more changes", 9)
		w.progress.Begin(3, w.request)
		w.expect(t, "after storage went back in time")
		w.progress.Advance(20)
		w.expect(t, "at the last revision", 20)
		w.await(t.Context(), 20)
		w.expect(t, "for a revision that has been handled", 20)
	})
}

// TestAwaitRequestsProgress counts the requests of the watch's revision. No event may follow the last change, so a call
// that waits makes a request at its start and after each progress; a call that need not wait makes none.
func TestAwaitRequestsProgress(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w waiters
		for _, step := range []struct {
			name string
			do   func()
			want int
		}{
			{"without calls", func() { w.progress.Begin(5, w.request) }, 0},
			{"a call that need not wait", func() { w.await(t.Context(), 5) }, 0},
			{"a call that waits", func() { w.await(t.Context(), 9) }, 1},
			{"too little progress", func() { w.progress.Advance(6) }, 2},
			{"the end of the watch", func() { w.progress.End() }, 2},
			{"the next watch", func() { w.progress.Begin(7, w.request) }, 3},
			{"enough progress", func() { w.progress.Advance(9) }, 3},
			{"progress without calls", func() { w.progress.Advance(10) }, 3},
		} {
			step.do()
			synctest.Wait()
			if w.requests != step.want {
				t.Errorf("%s: %d requests, want %d", step.name, w.requests, step.want)
			}
		}
	})
}

// TestAwaitEndsWithTheContext ends the context of one call. Another call for the same revision waits on.
func TestAwaitEndsWithTheContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w waiters
		cause := errors.New("cause")
		ctx, cancel := context.WithCancelCause(t.Context())
		ended, patient := make(chan error, 1), make(chan error, 1)
		go func() { ended <- w.progress.Await(ctx, 2) }()
		go func() { patient <- w.progress.Await(t.Context(), 2) }()
		synctest.Wait()
		cancel(cause)
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("got the error %v, want that of the context", err)
		}
		synctest.Wait()
		select {
		case err := <-patient:
			t.Fatalf("the other call has returned: %v", err)
		default:
		}
		w.progress.Begin(2, w.request)
		if err := <-patient; err != nil {
			t.Error(err)
		}
		if err := w.progress.Await(ctx, 2); err != nil {
			t.Errorf("a handled revision with an ended context: %v", err)
		}
	})
}

// TestNoProgress calls the functions of a follower that records no progress.
func TestNoProgress(t *testing.T) {
	t.Parallel()
	var none *follow.Progress
	none.Begin(1, func() { t.Error("a progress that is nil requests progress") })
	none.Advance(2)
	none.End()
}
