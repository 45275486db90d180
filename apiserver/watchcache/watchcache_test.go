package watchcache

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"quorate.dev/apiserver/storage"
)

func TestSnapshots(t *testing.T) {
	w := newWorld(t, Options{})
	w.create("pods/a/1", "x;")
	w.create("pods/b/1", "y;")
	w.create("podsother/a/1", "z;")
	pods := w.cache("pods")
	before := w.latest(pods)
	w.create("pods/a/2", "x;")
	w.delete("pods/b/1")
	after := w.latest(pods)
	if got, want := contents(before, "pods/"), "pods/a/1@x; pods/b/1@y;"; got != want {
		t.Errorf("before: %s, want %s", got, want)
	}
	if got, want := contents(after, "pods/"), "pods/a/1@x; pods/a/2@x;"; got != want {
		t.Errorf("after: %s, want %s", got, want)
	}
	if before.Count("pods/") != 2 || before.Count("pods/a/") != 1 || before.Count("pods/c/") != 0 {
		t.Errorf("counts: %d, %d, %d", before.Count("pods/"), before.Count("pods/a/"), before.Count("pods/c/"))
	}
	var from []string
	after.Ascend("pods/a/", "pods/a/2", func(e *Entry) bool { from = append(from, e.Name()); return true })
	if len(from) != 1 || from[0] != "2" {
		t.Errorf("from the second on: %v", from)
	}
	entry, ok := after.Get("pods/a/2")
	if !ok || entry.Namespace() != "a" || entry.Name() != "2" || entry.Labels()["app"] != "x" {
		t.Errorf("got %+v", entry)
	}
	if _, ok := after.Get("pods/b/1"); ok {
		t.Error("what was deleted is there")
	}
}

func TestLatestSeesWritesOutsideThePrefix(t *testing.T) {
	w := newWorld(t, Options{})
	pods := w.cache("pods")
	w.latest(pods)
	put, err := w.client.Put(t.Context(), "elsewhere", "")
	if err != nil {
		t.Fatal(err)
	}
	if got := w.latest(pods); got.Revision() < put.Header.Revision {
		t.Errorf("revision %d, want at least %d", got.Revision(), put.Header.Revision)
	}
}

func TestTooNew(t *testing.T) {
	fast := &fastClock{}
	w := newWorld(t, Options{Clock: fast})
	pods := w.cache("pods")
	revision := w.latest(pods).Revision()
	fast.fast.Store(true)
	if _, err := pods.Snapshot(t.Context(), revision+1000); !errors.Is(err, ErrTooNew) {
		t.Errorf("a revision that the store does not reach: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := pods.Snapshot(ctx, revision+1000); !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled caller: %v", err)
	}
}

func TestWatchScopes(t *testing.T) {
	w := newWorld(t, Options{})
	pods := w.cache("pods")
	start := w.latest(pods).Revision()
	all := w.watch(pods, start, Scope{})
	inA := w.watch(pods, start, Scope{Namespace: "a"})
	one := w.watch(pods, start, Scope{Namespace: "a", Name: "1"})
	named := w.watch(pods, start, Scope{Name: "1"})
	onNode := w.watch(pods, start, Scope{Field: "spec.nodeName", Value: "n"})

	w.create("pods/a/1", ";")
	w.create("pods/a/2", ";n")
	w.create("pods/b/1", ";m")
	w.update("pods/a/1", ";n") // moves to the node
	w.update("pods/a/2", ";m") // leaves the node
	w.delete("pods/a/1")
	w.delete("pods/b/1")

	history := []string{"ADDED pods/a/1@;", "ADDED pods/a/2@;n", "ADDED pods/b/1@;m", "MODIFIED pods/a/1@;n",
		"MODIFIED pods/a/2@;m", "DELETED pods/a/1@;n", "DELETED pods/b/1@;m"}
	pick := func(indices ...int) (picked []string) {
		for _, i := range indices {
			picked = append(picked, history[i])
		}
		return picked
	}
	events := w.expect(all, history...)
	w.expect(inA, pick(0, 1, 3, 4, 5)...)
	w.expect(one, pick(0, 3, 5)...)
	w.expect(named, pick(0, 2, 3, 5, 6)...)
	left := w.expect(onNode, pick(1, 3, 4, 5)...)
	for _, watcher := range []*Watcher{all, inA, one, named, onNode} {
		w.expectNothing(pods, watcher)
	}
	if e := left[2]; string(e.Previous.Stored()) != ";n" {
		t.Errorf("an object that leaves the scope has been %s before", e.Previous.Stored())
	}
	if e := events[5]; e.Entry.Revision() != e.Revision || e.Previous.Revision() >= e.Revision {
		t.Errorf("deleted at %d: entry %d, previous %d", e.Revision, e.Entry.Revision(), e.Previous.Revision())
	}

	// New watchers get the same events from the ring.
	w.expect(w.watch(pods, events[2].Revision, Scope{}), history[3:]...)
	w.expect(w.watch(pods, events[2].Revision, Scope{Namespace: "a"}), pick(3, 4, 5)...)
	w.expect(w.watch(pods, events[2].Revision, Scope{Field: "spec.nodeName", Value: "n"}), pick(3, 4, 5)...)
}

func TestWatchBeforeReady(t *testing.T) {
	w := newWorld(t, Options{})
	start := w.create("pods/a/1", "x;")
	pods := w.cache("pods")
	watcher := w.watch(pods, start, Scope{}) // starts the cache
	w.latest(pods)
	w.create("pods/a/2", "x;")
	w.expect(watcher, "ADDED pods/a/2@x;")
}

func TestWatchExpired(t *testing.T) {
	w := newWorld(t, Options{})
	first := w.create("pods/a/1", "x;")
	w.create("pods/a/2", "x;")
	last := w.create("pods/a/3", "x;")
	if err := w.store.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	pods := w.cache("pods")
	w.expectExpired(w.watch(pods, first, Scope{}))
	if _, err := pods.Watch(first, Scope{}); !errors.Is(err, ErrExpired) {
		t.Errorf("got %v", err)
	}
	if got := w.watch(pods, last, Scope{}); got.Revision() != last {
		t.Errorf("at %d", got.Revision())
	}
}

// TestWatchFromBeforeTheCache watches from revisions that clients got from another server, or before a restart.
func TestWatchFromBeforeTheCache(t *testing.T) {
	w := newWorld(t, Options{})
	revisions := []int64{w.create("pods/a/old", "x;"), w.create("pods/b/1", "x;n"), w.update("pods/b/1", "y;"),
		w.delete("pods/b/1"), w.create("pods/b/1", "z;"), w.create("podsother/1", "x"), w.update("pods/a/old", "y;")}
	history := []string{"ADDED pods/b/1@x;n", "MODIFIED pods/b/1@y;", "DELETED pods/b/1@y;", "ADDED pods/b/1@z;",
		"MODIFIED pods/a/old@y;"}
	pods := w.cache("pods")
	snapshot := w.latest(pods)
	all := w.watch(pods, revisions[0], Scope{})
	events := w.expect(all, history...)
	if got := events[4]; string(got.Previous.Stored()) != "x;" || got.Previous.Revision() != revisions[0] {
		t.Errorf("previous: %+v", got.Previous)
	}
	if present, _ := snapshot.Get("pods/a/old"); events[4].Entry != present {
		t.Error("an event of the present state has an entry of its own")
	}
	w.expect(w.watch(pods, revisions[2], Scope{}), history[2:]...)
	w.expect(w.watch(pods, revisions[0], Scope{Namespace: "a"}), history[4])
	w.expect(w.watch(pods, revisions[0], Scope{Field: "spec.nodeName", Value: "n"}), history[:2]...)
	w.create("pods/c/1", "x;")
	w.expect(all, "ADDED pods/c/1@x;")
	if got := w.metric("apiserver_watch_cache_initializations_total"); got != 1 {
		t.Errorf("the collection was read %v times", got)
	}
}

func TestRingKeepsWhatIsFresh(t *testing.T) {
	r := ring{maxBytes: 1 << 30, first: firstSequence, end: firstSequence}
	push := func(revision, received int64) {
		r.push(&record{entry: &Entry{revision: revision}, received: received})
		for r.outdated(received) {
			r.pop()
		}
	}
	second := int64(time.Second)
	for i := range int64(1000) {
		push(i+1, i*second/100) // 10 s
	}
	if r.end-r.first != 1000 || len(r.records) != 1024 {
		t.Errorf("%d fresh events are held in %d places", r.end-r.first, len(r.records))
	}
	if got := r.at(r.after(500)).entry.revision; got != 501 {
		t.Errorf("the first event after 500 is %d", got)
	}
	for i := range int64(120) {
		push(1001+i, 200*second)
	}
	if held := r.end - r.first; held != 120 || r.floor != 1000 {
		t.Errorf("%d events are held, those after %d", held, r.floor)
	}
	push(1121, 300*second) // all but the last are old, and minEvents of them are kept
	if held := r.end - r.first; held != minEvents {
		t.Errorf("%d old events are held", held)
	}
	for range 10 {
		r.shrink()
	}
	if len(r.records) > 256 || r.at(r.first).entry.revision != 1022 {
		t.Errorf("%d places", len(r.records))
	}
}

func TestSlowWatcherFallsOut(t *testing.T) {
	w := newWorld(t, Options{RingBytes: 16 << 10})
	pods := w.cache("pods")
	start := w.latest(pods).Revision()
	slow, fast := w.watch(pods, start, Scope{}), w.watch(pods, start, Scope{})
	slowInA, idle := w.watch(pods, start, Scope{Namespace: "a"}), w.watch(pods, start, Scope{Namespace: "b"})
	w.create("pods/a/1", "x;")
	w.expect(fast, "ADDED pods/a/1@x;")
	for i := range 200 {
		data := fmt.Sprint("x;", i)
		w.update("pods/a/1", data)
		w.expect(fast, "MODIFIED pods/a/1@"+data)
	}
	w.expectExpired(slow)
	w.expectExpired(slowInA)
	w.expectNothing(pods, fast)
	w.expectNothing(pods, idle)
}

func TestStreamResumesWithoutLoss(t *testing.T) {
	w := newWorld(t, Options{})
	pods := w.cache("pods")
	watcher := w.watch(pods, w.latest(pods).Revision(), Scope{})
	w.caches.stream.Load().Close()
	w.create("pods/a/1", "x;")
	w.update("pods/a/1", "y;")
	w.expect(watcher, "ADDED pods/a/1@x;", "MODIFIED pods/a/1@y;")
	if got := w.metric("apiserver_watch_cache_initializations_total"); got != 1 {
		t.Errorf("the collection was read %v times", got)
	}
}

func TestStreamLosesEvents(t *testing.T) {
	w := newStoppedWorld(t, Options{})
	for _, path := range []string{"pods/a/deleted", "pods/a/modified", "pods/a/recreated", "pods/a/same"} {
		w.create(path, "old;")
	}
	stop := w.follow(0)
	pods := w.cache("pods")
	old := w.latest(pods)
	watcher := w.watch(pods, old.Revision(), Scope{})
	inB := w.watch(pods, old.Revision(), Scope{Namespace: "b"})
	ahead := w.watch(pods, old.Revision()+2, Scope{})
	position := stop()

	w.update("pods/a/modified", "new;")
	w.delete("pods/a/recreated")
	w.create("pods/a/recreated", "new;")
	w.create("pods/b/added", "new;")
	w.create("pods/b/brief", "new;")
	w.delete("pods/b/brief")
	lost := w.delete("pods/a/deleted")
	if err := w.store.Compact(t.Context(), lost); err != nil {
		t.Fatal(err)
	}
	position, err := w.caches.follow(t.Context(), position)
	if position != 0 || !errors.Is(err, storage.ErrCompacted) {
		t.Fatalf("followed to %d, %v", position, err)
	}
	w.follow(position)
	w.expect(watcher, "MODIFIED pods/a/modified@new;", "DELETED pods/a/recreated@old;", "ADDED pods/a/recreated@new;",
		"ADDED pods/b/added@new;", "DELETED pods/a/deleted@old;")
	w.expect(inB, "ADDED pods/b/added@new;")
	w.expectExpired(ahead)
	want := "pods/a/modified@new; pods/a/recreated@new; pods/a/same@old; pods/b/added@new;"
	if got := contents(w.latest(pods), "pods/"); got != want {
		t.Errorf("contents %s, want %s", got, want)
	}
	if _, err := pods.Watch(old.Revision(), Scope{}); !errors.Is(err, ErrExpired) {
		t.Errorf("watching from before the loss: %v", err)
	}
	w.create("pods/b/later", "new;")
	w.expect(watcher, "ADDED pods/b/later@new;")
	w.expect(inB, "ADDED pods/b/later@new;")
}

func TestDrop(t *testing.T) {
	w := newWorld(t, Options{})
	w.create("pods/a/1", "x;")
	pods := w.cache("pods")
	entry, _ := w.latest(pods).Get("pods/a/1")
	if _, err := entry.Encoded(t.Context(), newFormat(nil)); err != nil {
		t.Fatal(err)
	}
	watcher := w.watch(pods, w.latest(pods).Revision(), Scope{})
	seeking := w.watch(pods, 1, Scope{}) // has no position yet
	w.caches.Drop("pods")
	w.expectEnd(watcher, ErrDropped)
	w.expectEnd(seeking, ErrDropped)
	if _, err := pods.Snapshot(t.Context(), 0); !errors.Is(err, ErrDropped) {
		t.Errorf("a dropped cache: %v", err)
	}
	if bytes, count := w.caches.encoded.usage(); bytes != 0 || count != 0 {
		t.Errorf("%d encodings of %d bytes are left", count, bytes)
	}
	if got := contents(w.latest(w.cache("pods")), "pods/"); got != "pods/a/1@x;" {
		t.Errorf("cached again: %s", got)
	}
}

// TestRefused has a collection whose description does not permit caching any more.
func TestRefused(t *testing.T) {
	w := newWorld(t, Options{})
	w.create("pods/a/1", "x;")
	refused := w.caches.For("pods", func() (Extract, bool) { return extract(), false })
	if _, err := refused.Latest(t.Context()); !errors.Is(err, ErrDropped) {
		t.Errorf("read: %v", err)
	}
	if _, err := refused.Watch(1, Scope{}); !errors.Is(err, ErrDropped) {
		t.Errorf("watched: %v", err)
	}
	refused.Offer("pods/a/1", 1, newFormat(nil), nil)
	if got := contents(w.latest(w.cache("pods")), "pods/"); got != "pods/a/1@x;" {
		t.Errorf("cached afterwards: %s", got)
	}
}

func TestRetained(t *testing.T) {
	w := newWorld(t, Options{})
	pods := w.cache("pods")
	w.create("pods/a/1", "x;")
	snapshot := w.latest(pods)
	pods.Retain(snapshot)
	w.create("pods/a/2", "x;")
	w.latest(pods)
	again, ok := pods.At(snapshot.Revision())
	if !ok || contents(again, "pods/") != "pods/a/1@x;" || again.Revision() != snapshot.Revision() {
		t.Errorf("retained: %v, %v", again, ok)
	}
	if _, ok := pods.At(snapshot.Revision() - 1); ok {
		t.Error("a state that was not retained")
	}
	for range maxRetained {
		w.create(fmt.Sprint("pods/b/", rand.Int()), "x;")
		pods.Retain(w.latest(pods))
	}
	if _, ok := pods.At(snapshot.Revision()); ok {
		t.Error("more snapshots are retained than there should be")
	}
}

// TestConcurrentWritersAndReaders checks that every reader's view equals the store in the end.
func TestConcurrentWritersAndReaders(t *testing.T) {
	w := newWorld(t, Options{EncodingBudget: 4 << 10})
	pods := w.cache("pods")
	var writers, readers sync.WaitGroup
	start := w.latest(pods).Revision()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	views := make([]map[string]string, 4)
	for i := range views {
		views[i] = map[string]string{}
		watcher := w.watch(pods, start, Scope{})
		readers.Go(func() { replay(t, ctx, watcher, views[i]) })
	}
	writers.Go(func() { readOwnWrites(w, ctx, pods) })
	for i := range 3 {
		writers.Go(func() { write(w, fmt.Sprintf("pods/%d/", i)) })
	}
	writers.Wait()
	w.create(lastPath, "end")
	page, err := w.store.List(t.Context(), "pods/", storage.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{}
	for _, value := range page.Values {
		want[value.Path] = string(value.Data)
	}
	readers.Wait()
	for i, view := range views {
		if fmt.Sprint(view) != fmt.Sprint(want) {
			t.Errorf("view %d has %v, want %v", i, view, want)
		}
	}
	if bytes, _ := w.caches.encoded.usage(); bytes > 4<<10 {
		t.Errorf("encodings take %d bytes", bytes)
	}
}

// lastPath is the path written last.
const lastPath = "pods/end/end"

// replay applies events to a view until lastPath arrives.
func replay(t *testing.T, ctx context.Context, watcher *Watcher, view map[string]string) {
	format := newFormat(nil)
	var last int64
	for view[lastPath] == "" {
		events, _, err := watcher.Next(ctx)
		if err != nil {
			t.Error(err)
			return
		}
		for _, event := range events {
			if event.Revision < last {
				t.Errorf("revision %d after %d", event.Revision, last)
			}
			last = event.Revision
			var frame struct {
				Type   watch.EventType
				Object metav1.PartialObjectMetadata
			}
			data, err := event.Encoded(t.Context(), format, watch.EventType(event.Type.String()))
			if err == nil {
				err = json.Unmarshal(data, &frame)
			}
			if err != nil || string(frame.Type) != event.Type.String() {
				t.Errorf("frame %s, %v", data, err)
			}
			if event.Type == Deleted {
				delete(view, event.Entry.Path())
			} else {
				view[event.Entry.Path()] = frame.Object.Name
			}
		}
	}
}

// readOwnWrites checks that a finished write is always in the latest snapshot.
func readOwnWrites(w *world, ctx context.Context, pods *Cache) {
	format := newFormat(nil)
	revision := w.create("pods/own/1", "0;")
	for i := 1; i <= 100 && ctx.Err() == nil; i++ {
		data := []byte(fmt.Sprint(i, ";"))
		next, err := w.store.Update(ctx, "pods/own/1", revision, data, 0)
		if err != nil {
			w.Error(err)
			return
		}
		revision = next
		pods.Offer("pods/own/1", revision, format, data)
		snapshot, err := pods.Latest(ctx)
		if err != nil {
			w.Error(err)
			return
		}
		entry, ok := snapshot.Get("pods/own/1")
		if !ok || string(entry.Stored()) != string(data) {
			w.Errorf("wrote %s, read %s", data, entry.Stored())
		}
	}
}

func write(w *world, prefix string) {
	revisions := map[string]int64{}
	for i := range 300 {
		path := prefix + fmt.Sprint(rand.IntN(20))
		data := []byte(fmt.Sprint("x;", i))
		var err error
		switch revision := revisions[path]; {
		case revision == 0:
			revisions[path], err = w.store.Create(w.Context(), path, data, 0)
		case rand.IntN(4) == 0:
			_, err = w.store.Delete(w.Context(), path, revision)
			delete(revisions, path)
		default:
			revisions[path], err = w.store.Update(w.Context(), path, revision, data, 0)
		}
		if err != nil {
			w.Error(err)
			return
		}
	}
}

// TestLaggingStream delivers an event that the list of the collection contained already.
func TestLaggingStream(t *testing.T) {
	w := newStoppedWorld(t, Options{})
	start := w.create("pods/a/1", "x;")
	updated := w.update("pods/a/1", "y;")
	stop := w.follow(0)
	pods := w.cache("pods")
	w.latest(pods)
	stop()
	w.caches.apply(storage.Batch{Revision: updated, Events: []storage.Event{
		{Path: "pods/a/1", Data: []byte("x;"), Revision: start, Created: start},
	}})
	if got := contents(pods.now(), "pods/"); got != "pods/a/1@y;" || pods.ring.end != pods.ring.first {
		t.Errorf("an event from before the read was applied: %s", got)
	}
}
