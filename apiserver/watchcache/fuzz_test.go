package watchcache

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	testclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/storage"
)

// change is a write to the modelled store.
type change struct {
	path, before, after string // the object before and after the write; "": none
	revision            int64
}

func (c change) kind() Type {
	switch {
	case c.before == "":
		return Added
	case c.after == "":
		return Deleted
	}
	return Modified
}

func (c change) String() string {
	object := c.after
	if object == "" {
		object = c.before
	}
	return fmt.Sprintf("%s %s=%s, before %s, at %d", c.kind(), c.path, object, c.before, c.revision)
}

// concerns reports whether a watcher of a scope receives a change.
func (c change) concerns(scope Scope) bool {
	namespace, name := c.path[len("pods/"):len("pods/")+1], c.path[len("pods/a/"):]
	inField := func(object string) bool {
		return object != "" && (scope.Field == "" || object[len("x;"):] == scope.Value)
	}
	return (scope.Namespace == "" || scope.Namespace == namespace) && (scope.Name == "" || scope.Name == name) &&
		(inField(c.before) || inField(c.after))
}

// fuzzWorld is a cache without a store, and a model of what it receives.
type fuzzWorld struct {
	*testing.T
	clock    *testclock.FakeClock
	caches   *Caches
	cache    *Cache
	objects  map[string]string
	written  map[string]int64 // revision of each present object
	made     map[string]int64 // revision that created each present object
	changes  []change
	revision int64
	watchers []*fuzzWatcher
	filled   int // number of changes before the cache was filled
}

type fuzzWatcher struct {
	*Watcher
	seen int // number of changes up to the watcher's position
	over bool
}

// write changes one of eight objects, and returns the event that the store sends.
func (w *fuzzWorld) write(choice byte) storage.Event {
	path := fmt.Sprintf("pods/%c/%d", 'a'+choice&1, choice>>1&3)
	w.revision += int64(1 + choice>>7)
	c := change{path: path, before: w.objects[path], revision: w.revision}
	event := storage.Event{Path: path, Revision: w.revision, Previous: []byte(c.before), Replaced: w.written[path]}
	if c.before == "" {
		event.Previous, w.made[path] = nil, w.revision
	}
	if c.before != "" && choice>>3&3 == 0 {
		delete(w.objects, path)
		delete(w.written, path)
	} else {
		c.after = fmt.Sprintf("%c;node=%d", 'x'+choice>>5&1, choice>>6&1)
		event.Data, event.Created = []byte(c.after), w.made[path]
		w.objects[path], w.written[path] = c.after, w.revision
	}
	w.changes = append(w.changes, c)
	return event
}

// fill fills the cache with the present objects of the model.
func (w *fuzzWorld) fill() {
	epoch, _ := w.cache.begin()
	var entries []*Entry
	for _, path := range slices.Sorted(maps.Keys(w.objects)) {
		entries = append(entries, w.cache.newEntry(path, []byte(w.objects[path]), w.written[path], w.made[path]))
	}
	w.filled = len(w.changes)
	w.caches.progress.advance(w.revision)
	if !w.cache.install(epoch, entries, w.revision) {
		w.Fatal("the cache cannot be filled")
	}
}

func (w *fuzzWorld) watch(choice byte) {
	scope := Scope{}
	if choice&1 > 0 {
		scope.Namespace = "a"
	}
	if choice&2 > 0 {
		scope.Name = "1"
	}
	if choice&4 > 0 {
		scope.Field, scope.Value = "spec.nodeName", "node=1"
	}
	seen := max(len(w.changes)-int(choice>>3), 0)
	after := int64(1)
	if seen > 0 {
		after = w.changes[seen-1].revision
	}
	watcher, err := w.cache.Watch(after, scope)
	if errors.Is(err, ErrExpired) && w.mayExpire(seen, Scope{}) {
		return
	}
	if err != nil {
		w.Fatalf("watching after %d with the ring's floor at %d: %v", after, w.cache.ring.floor, err)
	}
	w.watchers = append(w.watchers, &fuzzWatcher{Watcher: watcher, seen: seen})
}

// mayExpire reports whether the ring lacks a change in a scope that follows the given number of first changes.
func (w *fuzzWorld) mayExpire(seen int, scope Scope) bool {
	for _, c := range w.changes[seen:] {
		if c.revision <= w.cache.ring.floor && c.concerns(scope) {
			return true
		}
	}
	return false
}

// drain compares the events of a watcher with the model.
func (w *fuzzWorld) drain(watcher *fuzzWatcher, history []storage.Event) {
	var received []string
	for {
		events, err := watcher.take()
		switch {
		case errors.Is(err, errNoPosition):
			if watcher.over = !w.extend(watcher, history); watcher.over {
				return
			}
			continue
		case errors.Is(err, ErrExpired) && w.mayExpire(watcher.seen, watcher.scope):
			watcher.over = true
			return
		case err != nil:
			w.Fatalf("a watcher after %d with the ring's floor at %d: %v", watcher.after, w.cache.ring.floor, err)
		}
		if len(events) == 0 {
			break
		}
		for _, e := range events {
			before := ""
			if e.Previous != nil {
				before = string(e.Previous.Stored())
			}
			received = append(received, fmt.Sprintf("%s %s=%s, before %s, at %d",
				e.Type, e.Entry.Path(), e.Entry.Stored(), before, e.Revision))
		}
	}
	var want []string
	for _, c := range w.changes[watcher.seen:] {
		if c.concerns(watcher.scope) {
			want = append(want, c.String())
		}
	}
	watcher.seen = len(w.changes)
	if !slices.Equal(received, want) {
		w.Fatalf("a watcher of %+v after %d was received\n%q, want\n%q", watcher.scope, watcher.after, received, want)
	}
}

// extend does the same as Watcher.positionInHistory, with history from the model. It reports whether the watcher has
// a position.
func (w *fuzzWorld) extend(watcher *fuzzWatcher, history []storage.Event) bool {
	w.cache.mu.Lock()
	defer w.cache.mu.Unlock()
	if w.cache.ring.floor > watcher.after {
		if !w.cache.extensible(watcher.after) {
			return false
		}
		first := slices.IndexFunc(history, func(e storage.Event) bool { return e.Revision > watcher.after })
		last := slices.IndexFunc(history, func(e storage.Event) bool { return e.Revision > w.cache.ring.floor })
		if last < 0 {
			last = len(history)
		}
		w.cache.prepend(history[first:last], watcher.after)
	}
	watcher.waiting = false
	watcher.position()
	return true
}

// FuzzHistory fills a cache with a small ring in the middle of a history. Watchers start before and after that point.
func FuzzHistory(f *testing.F) {
	f.Add([]byte{0})
	f.Add([]byte("\x00abcdefghi\xf0\xe0"))            // a watcher from the change before the last
	f.Add([]byte("\x14abcdefghijklmnopqrst\xfa\xe0")) // a watcher from before the cache was filled
	f.Add([]byte("\x05\x10\x21\x32\x43\x54 0 1 2 3 4 5 6 7 8 9"))
	f.Add([]byte("\x14abcdefghijklmnopqrstuvwxyz\xfd\xfe\xff\xf1\xf9zyxwvutsrqponmlkjihgfedcba"))
	f.Add(slices.Repeat([]byte{0x21, 0xf8, 0x42, 0x63, 0xfa, 0x84, 0xa5, 0xfc, 0x00}, 40))
	f.Fuzz(func(t *testing.T, input []byte) {
		if len(input) == 0 || len(input) > 1000 {
			return
		}
		store := storage.New(clientv3.NewCtxClient(t.Context()), "/registry") // never called
		w := &fuzzWorld{T: t, clock: testclock.NewFakeClock(time.Now()), objects: map[string]string{},
			written: map[string]int64{}, made: map[string]int64{}, revision: 1}
		w.caches = New(store, Options{Clock: w.clock, Logger: logr.Discard(), RingBytes: 5 << 10})
		w.cache = w.caches.For("pods", func() (Extract, bool) { return extract(), true })
		w.cache.start.Do(func() {}) // the fuzz target fills the cache itself
		before := min(int(input[0]%32), len(input)-1)
		var history []storage.Event
		for _, choice := range input[1 : 1+before] {
			history = append(history, w.write(choice))
		}
		w.fill()
		for i, choice := range input[1+before:] {
			switch {
			case choice >= 0xf0:
				w.watch(byte(i) ^ choice<<4)
			case choice >= 0xe8:
				w.clock.Step(time.Minute)
				w.cache.sweep(w.clock.Now())
			case choice >= 0xe0:
				for _, watcher := range w.watchers {
					if !watcher.over {
						w.drain(watcher, history)
					}
				}
			default:
				w.caches.apply(storage.Batch{Events: []storage.Event{w.write(choice)}, Revision: w.revision})
			}
		}
		for _, watcher := range w.watchers {
			if !watcher.over {
				w.drain(watcher, history)
			}
		}
		stored := map[string]string{}
		w.cache.now().Ascend("pods/", "", func(e *Entry) bool { stored[e.Path()] = string(e.Stored()); return true })
		if !maps.Equal(stored, w.objects) {
			t.Errorf("the cache has %v, want %v", stored, w.objects)
		}
	})
}
