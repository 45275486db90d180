package watchcache

import (
	"context"
	"errors"
	"sync/atomic"
)

// batchSize bounds the number of events that one call of Next returns.
const batchSize = 256

// Scope restricts a watcher to the objects that match all of its parts. An empty part matches every object; the zero
// value is the whole collection.
type Scope struct {
	Namespace string
	Name      string
	Field     string // a selectable field. Its value before or after the event must be Value.
	Value     string
}

// shape says which parts of a Scope are not empty. field is the name of the Scope's field.
type shape struct {
	namespace, name bool
	field           string
}

func (s Scope) shape() shape {
	return shape{namespace: s.Namespace != "", name: s.Name != "", field: s.Field}
}

// scope returns the scope of this shape that an entry matches. It returns false if the field of the entry cannot be
// read.
func (s shape) scope(entry *Entry) (Scope, bool) {
	var scope Scope
	if s.namespace {
		scope.Namespace = entry.Namespace()
	}
	if s.name {
		scope.Name = entry.Name()
	}
	if s.field == "" {
		return scope, true
	}
	value, err := entry.Field(s.field)
	scope.Field, scope.Value = s.field, value
	return scope, err == nil
}

// Watcher is a cursor into the events of a collection. It has no goroutine and no copies of events. Next must not be
// called concurrently; the other methods may be called during Next.
type Watcher struct {
	cache    *Cache
	scope    Scope
	after    int64         // revision after which the watcher starts
	wake     chan struct{} // capacity 1; see signal
	progress atomic.Bool   // RequestProgress was called after the last return of Next
	// seen is the revision up to which the watcher has returned all events. Invariant: it never decreases.
	seen atomic.Int64

	// The fields below are guarded by Cache.mu. Next changes next and pending under the read lock: calls of Next are
	// not concurrent with each other, and all other functions that use the fields hold the write lock.

	// waiting is set while the watcher has no position yet: when it was added, the cache was not ready, or the ring
	// began after the watcher's start.
	waiting bool
	expired bool
	closed  bool
	// next is the sequence number of the next event to return, in watchers of the whole collection only. Invariant:
	// unless waiting or expired, next < ring.first means that the watcher has missed events.
	next uint64
	// pending has the sequence numbers of the events to return, ascending, in watchers of narrower scopes only.
	pending []uint64
}

// Watch starts watching after a revision. It fails with ErrExpired if the cache knows that events after the revision
// are lost; if only the store knows, Next fails with it instead. Watch does not wait.
func (c *Cache) Watch(after int64, scope Scope) (*Watcher, error) {
	c.start.Do(c.load)
	w := &Watcher{cache: c, scope: scope, after: after, wake: make(chan struct{}, 1)}
	w.seen.Store(after)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch c.state {
	case dropped:
		return nil, ErrDropped
	case ready:
		if after >= c.ring.floor {
			w.position()
		} else if w.waiting = c.extensible(after); !w.waiting {
			return nil, ErrExpired
		}
	default:
		w.waiting = true
	}
	c.watchers.add(w)
	return w, nil
}

// CountInitial counts initial events in the metrics: the objects that a watch sends before its events.
func (w *Watcher) CountInitial(events int) { w.cache.stats.initial.Add(int64(events)) }

// position sets next, and pending of a narrower scope, to the first event after the watcher's start, which must be at
// least ring.floor. The caller holds the write lock.
func (w *Watcher) position() {
	ring := &w.cache.ring
	w.next = ring.after(w.after)
	if w.wholeCollection() {
		return
	}
	for n := w.next; n < ring.end; n++ {
		if w.matches(ring.at(n)) {
			w.pending = append(w.pending, n)
		}
	}
}

// wholeCollection reports whether the watcher returns every event. Such a watcher reads the ring itself from next on;
// it needs no pending, which would have every event.
func (w *Watcher) wholeCollection() bool { return w.scope == Scope{} }

// matches reports whether the object of an event is in the scope before or after the event.
func (w *Watcher) matches(r *record) bool {
	s := w.scope.shape()
	if scope, ok := s.scope(r.entry); ok && scope == w.scope {
		return true
	}
	if s.field == "" || r.previous == nil {
		return false
	}
	scope, ok := s.scope(r.previous)
	return ok && scope == w.scope
}

// Next waits for events, and returns them with the revision up to which the watcher has returned all events. After
// RequestProgress it may return no events. It fails with ErrExpired if the watcher has missed events, and with
// ErrDropped if the cache is dropped. The first call may fetch history from the store.
func (w *Watcher) Next(ctx context.Context) ([]Event, int64, error) {
	for {
		progress := w.progress.Swap(false)
		events, err := w.take()
		if errors.Is(err, errNoPosition) {
			err = w.positionInHistory(ctx)
			w.progress.Store(progress || w.progress.Load())
			if err == nil {
				continue
			}
		}
		if err != nil {
			return nil, 0, err
		}
		if len(events) > 0 || progress {
			return events, w.seen.Load(), nil
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

// errNoPosition means that history must be added to the ring before the watcher has a position.
var errNoPosition = errors.New("the watch starts before the first event in the ring")

// positionInHistory adds history from the store to the ring and positions the watcher in it.
func (w *Watcher) positionInHistory(ctx context.Context) error {
	c := w.cache
	err := c.extend(ctx, w.after)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == dropped {
		return ErrDropped
	}
	if err != nil {
		return err
	}
	if w.expired || w.after < c.ring.floor {
		return ErrExpired
	}
	w.waiting = c.state != ready
	if !w.waiting {
		w.position()
	}
	return nil
}

// RequestProgress makes the current or next call of Next return even if there are no events, for a bookmark.
func (w *Watcher) RequestProgress() {
	w.progress.Store(true)
	w.signal()
}

// Revision returns the revision up to which the watcher has returned all events.
func (w *Watcher) Revision() int64 { return w.seen.Load() }

// Oldest returns the revision after which the cache holds all events.
func (w *Watcher) Oldest() int64 { return w.cache.Oldest() }

// Oldest returns the revision after which the cache holds all events.
func (c *Cache) Oldest() int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.ring.floor
}

// Close removes the watcher from its cache. Repeated calls have no effect.
func (w *Watcher) Close() {
	w.cache.mu.Lock()
	defer w.cache.mu.Unlock()
	w.cache.watchers.remove(w)
}

// take returns the available events without waiting. It must load the progress before it takes the lock: the ring
// then contains all events up to the loaded revision.
func (w *Watcher) take() ([]Event, error) {
	c := w.cache
	seen := c.caches.progress.seen.Load()
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.state == dropped {
		return nil, ErrDropped
	}
	if w.expired || w.behind() {
		return nil, ErrExpired
	}
	if w.waiting && c.state == ready {
		return nil, errNoPosition
	}
	if w.waiting {
		return nil, nil
	}
	var events []Event
	var more bool
	if w.wholeCollection() {
		events, more = w.takeRing()
	} else {
		events, more = w.takePending()
	}
	switch {
	case more:
		seen = events[len(events)-1].Revision - 1 // more events may belong to the same transaction
		w.signal()
	case c.state != ready:
		seen = 0
	}
	if len(events) > 0 && !more {
		seen = max(seen, events[len(events)-1].Revision)
	}
	w.seen.Store(max(seen, w.seen.Load()))
	c.stats.dispatched.Add(int64(len(events)))
	return events, nil
}

// behind reports whether the ring has dropped events that the watcher has not returned.
func (w *Watcher) behind() bool {
	if w.waiting {
		return false
	}
	if w.wholeCollection() {
		return w.next < w.cache.ring.first
	}
	return len(w.pending) > 0 && w.pending[0] < w.cache.ring.first
}

// takeRing returns the next events of a watcher of the whole collection, at most batchSize, and whether there are more.
// Events up to the start of the watcher are skipped. The caller holds the read lock.
func (w *Watcher) takeRing() (events []Event, more bool) {
	ring := &w.cache.ring
	for ; w.next < ring.end && len(events) < batchSize; w.next++ {
		r := ring.at(w.next)
		if r.entry.revision <= w.after {
			continue
		}
		if events == nil {
			events = make([]Event, 0, min(ring.end-w.next, batchSize))
		}
		events = append(events, r.event())
	}
	return events, w.next < ring.end
}

// takePending returns the next events of a watcher of a narrower scope like takeRing. All of them are in the ring,
// because the caller has checked behind.
func (w *Watcher) takePending() (events []Event, more bool) {
	count := min(len(w.pending), batchSize)
	if count == 0 {
		return nil, false
	}
	events = make([]Event, 0, count)
	for _, sequence := range w.pending[:count] {
		events = append(events, w.cache.ring.at(sequence).event())
	}
	w.pending = w.pending[count:]
	if len(w.pending) == 0 {
		w.pending = nil
	}
	return events, len(w.pending) > 0
}

// signal wakes Next. The channel holds one signal, so that a signal between take and the wait is not lost.
func (w *Watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// expire makes Next fail with ErrExpired. The client then lists the collection again. The caller holds the write lock.
func (w *Watcher) expire() {
	w.expired, w.pending = true, nil
	w.signal()
}
