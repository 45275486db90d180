package watchcache

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
)

func text(data string) func() ([]byte, error) {
	return func() ([]byte, error) { return []byte(data), nil }
}

func TestEncodingIsMadeOnce(t *testing.T) {
	b, e, format := &budget{limit: 1 << 20}, &encodings{}, newFormat(nil)
	var made atomic.Int32
	var started, readers sync.WaitGroup
	started.Add(50)
	for range 50 {
		readers.Go(func() {
			started.Done()
			data, err := e.get(b, format, func() ([]byte, error) {
				started.Wait() // all others wait for the encoding
				made.Add(1)
				return []byte("x"), nil
			})
			if string(data) != "x" || err != nil {
				t.Errorf("got %s, %v", data, err)
			}
		})
	}
	readers.Wait()
	if made.Load() != 1 {
		t.Errorf("made %d times", made.Load())
	}
}

func TestFailedEncodingIsTriedAgain(t *testing.T) {
	b, e, format := &budget{limit: 1 << 20}, &encodings{}, newFormat(nil)
	failure := errors.New("failure")
	if _, err := e.get(b, format, func() ([]byte, error) { return nil, failure }); !errors.Is(err, failure) {
		t.Errorf("got %v", err)
	}
	func() {
		defer func() { recover() }()
		e.get(b, format, func() ([]byte, error) { panic("cannot") })
	}()
	if data, err := e.get(b, format, text("x")); string(data) != "x" || err != nil {
		t.Errorf("got %s, %v", data, err)
	}
}

func TestBudgetEvictsUnusedEncodings(t *testing.T) {
	const one = encodingOverhead + 100
	b, format := &budget{limit: 10 * one}, newFormat(nil)
	owners := make([]encodings, 30)
	data := string(make([]byte, 100))
	for i := range owners {
		owners[i].get(b, format, text(data))
		owners[0].get(b, format, text(data)) // owners[0] is used all the time
		if bytes, count := b.usage(); bytes > b.limit || bytes != int64(count*one) {
			t.Fatalf("%d encodings take %d bytes", count, bytes)
		}
	}
	if owners[0].find(format) == nil {
		t.Error("the encoding in use was evicted")
	}
	if owners[1].find(format) != nil {
		t.Error("the oldest unused encoding was not evicted")
	}
	if owners[29].find(format) == nil {
		t.Error("the newest encoding was evicted")
	}
}

func TestRetiredKeepsNothing(t *testing.T) {
	b, e := &budget{limit: 1 << 20}, &encodings{}
	for i := range 3 {
		e.get(b, newFormat(nil), text(fmt.Sprint(i)))
	}
	late := newFormat(nil)
	e.get(b, late, func() ([]byte, error) { b.retire(e); return []byte("late"), nil })
	if data, err := e.get(b, late, text("again")); string(data) != "again" || err != nil {
		t.Errorf("got %s, %v", data, err)
	}
	if bytes, count := b.usage(); bytes != 0 || count != 0 || e.list.Load() != nil {
		t.Errorf("%d encodings of %d bytes are left", count, bytes)
	}
}

// TestNothingLeaksWhenEntriesAreReplaced writes one object so often that all earlier states have left the ring.
func TestNothingLeaksWhenEntriesAreReplaced(t *testing.T) {
	w := newWorld(t, Options{RingBytes: 1})
	pods := w.cache("pods")
	w.create("pods/a/1", "x;")
	format := newFormat(nil)
	for i := range 50 {
		entry, _ := w.latest(pods).Get("pods/a/1")
		if _, err := entry.Encoded(t.Context(), format); err != nil {
			t.Fatal(err)
		}
		w.update("pods/a/1", fmt.Sprint(i, ";"))
	}
	w.latest(pods)
	if _, count := w.caches.encoded.usage(); count > 1 {
		t.Errorf("%d encodings of one object are kept", count)
	}
	if len(pods.labels.sets) > 1 {
		t.Errorf("%d sets of labels of one object are kept", len(pods.labels.sets))
	}
}

func TestOffer(t *testing.T) {
	w := newWorld(t, Options{})
	pods := w.cache("pods")
	format := newFormat(errors.New("encoded although the encoding was offered"))
	check := func(path string) {
		t.Helper()
		entry, ok := w.latest(pods).Get(path)
		if !ok {
			t.Fatalf("%s is not there", path)
		}
		if data, err := entry.Encoded(t.Context(), format); err != nil || string(data.Bytes()) != path {
			t.Errorf("got %s, %v", data.Bytes(), err)
		}
	}
	w.latest(pods)
	w.create("pods/a/1", "x;")
	after := w.latest(pods)
	pods.Offer("pods/a/1", after.Revision(), format, []byte("pods/a/1")) // the event has arrived
	check("pods/a/1")

	w.create("pods/a/2", "x;")
	pods.Offer("pods/a/2", w.latest(pods).Revision()+1, format, []byte("pods/a/2")) // the event has not arrived
	w.update("pods/a/2", "y;")
	check("pods/a/2")

	pods.Offer("pods/a/2", w.latest(pods).Revision()+1, format, []byte("never")) // the event will never arrive
	w.create("pods/a/3", "x;")
	w.latest(pods)
	pods.sweep(w.caches.clock.Now())
	pods.mu.RLock()
	defer pods.mu.RUnlock()
	if len(pods.offers) != 0 {
		t.Errorf("offers are left: %v", pods.offers)
	}
}

func TestOffersAreOfOneRevision(t *testing.T) {
	o := offers{}
	for revision := range int64(4) {
		o.add(offer{path: "a", revision: revision})
	}
	if due := o.take("a", 2); len(due) != 1 || due[0].revision != 2 || len(o["a"]) != 1 {
		t.Errorf("due %v, left %v", due, o)
	}
	if o.forget(3); len(o) != 0 {
		t.Errorf("left %v", o)
	}
}
