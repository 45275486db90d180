package watchcache

import (
	"context"
	"errors"
	"sync/atomic"
)

// batchSize bounds the events of one Next.
const batchSize = 256

// Scope restricts a watcher to some objects. Empty parts match everything; the zero value is the whole collection.
type Scope struct {
	Namespace string
	Name      string
	Field     string // a selectable field, whose value before or after the event must be Value
	Value     string
}

// shape is the set of parts of a scope that are not empty.
type shape struct {
	namespace, name bool
	field           string
}

func (s Scope) shape() shape {
	return shape{namespace: s.Namespace != "", name: s.Name != "", field: s.Field}
}

// scope returns the scope of this shape that an entry matches.
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

// Watcher is a cursor into the events of a collection. It has no goroutine and no copy of events. Next must not be
// called concurrently.
type Watcher struct {
	cache    *Cache
	scope    Scope
	after    int64         // the watcher starts after this revision
	wake     chan struct{} // capacity 1; see signal
	progress atomic.Bool   // RequestProgress was called
	// seen is the revision up to which the watcher has returned all events. Invariant: it never decreases.
	seen atomic.Int64

	// Guarded by Cache.mu. Next changes next and pending under the read lock: concurrent calls of Next are not allowed,
	// and all others that use them hold the write lock.

	// waiting is set while the watcher has no position: the cache is not ready, or the ring begins after the start.
	waiting bool
	expired bool
	closed  bool
	// next is the sequence number of the next event to return. Used by watchers of the whole collection only.
	// Invariant: unless waiting or expired, next < ring.first means that events were missed.
	next uint64
	// pending are the sequence numbers of the events to return, ascending. Used by watchers of narrower scopes only.
	pending []uint64
}

// Watch starts watching after a revision. It fails with ErrExpired if events after it are lost. If only the store
// knows, Next fails instead.
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

// CountInitial counts the events of the initial state.
func (w *Watcher) CountInitial(events int) { w.cache.stats.initial.Add(int64(events)) }

// position sets the cursor to the first event after the start. The caller holds the write lock.
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

func (w *Watcher) wholeCollection() bool { return w.scope == Scope{} }

// matches reports whether an event is in the scope, before or after the change.
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

// Next waits for events and returns them, and the revision up to which the watcher has returned all events. After
// RequestProgress, it may return no events. It fails with ErrExpired if the watcher missed events, and with ErrDropped
// if the cache has been dropped.
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

// errNoPosition means that the ring must be extended by events from before the cache was filled.
var errNoPosition = errors.New("the watch starts before the first event in the ring")

// positionInHistory extends the ring by events from the store and positions the watcher among them.
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

// RequestProgress makes the current or next call of Next return even if there are no events.
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

// Close removes the watcher.
func (w *Watcher) Close() {
	w.cache.mu.Lock()
	defer w.cache.mu.Unlock()
	w.cache.watchers.remove(w)
}

// take returns the available events without waiting. It must read the progress before it takes the lock: the ring then
// contains all events up to it.
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
		seen = events[len(events)-1].Revision - 1 // the rest may have the same revision, that of one transaction
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

// signal wakes Next. wake buffers one signal, so that none is lost between take and the wait.
func (w *Watcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

func (w *Watcher) expire() {
	w.expired, w.pending = true, nil
	w.signal()
}
