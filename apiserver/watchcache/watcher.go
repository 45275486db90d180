package watchcache

import (
	"context"
	"errors"
	"sync/atomic"
)

// batchSize bounds the events that one Next returns.
const batchSize = 256

// Scope narrows a watcher to some objects. Empty parts do not restrict; the zero value is the whole collection.
type Scope struct {
	Namespace string
	Name      string
	Field     string // a selectable field, whose value before or after the event must be Value
	Value     string
}

// shape is which parts of a scope restrict.
type shape struct {
	namespace, name bool
	field           string
}

func (s Scope) shape() shape {
	return shape{namespace: s.Namespace != "", name: s.Name != "", field: s.Field}
}

// scope returns the scope of this shape that an entry is in.
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
	set, err := entry.Fields()
	if err != nil {
		return scope, false
	}
	scope.Field, scope.Value = s.field, set[s.field]
	return scope, true
}

// Watcher is one client's place in the events of a collection. Next must not be called by two at once.
type Watcher struct {
	cache *Cache
	scope Scope
	after int64         // events up to this revision are not for it
	wake  chan struct{} // capacity 1
	asked atomic.Bool   // progress has been requested
	seen  atomic.Int64

	// Guarded by the cache's lock; next and pending are also touched by Next under the read lock.
	waiting bool // has no place yet: the cache is not ready, or lacks events from before it was filled
	expired bool
	closed  bool
	next    uint64   // of a watcher of everything: the next event to look at
	pending []uint64 // of any other: the sequence numbers of the events to deliver
}

// Watch starts watching after a revision. It fails with ErrExpired if the events after it are not to be had any
// more; where only the store can tell, Next does.
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
			w.place()
		} else if w.waiting = c.extensible(after); !w.waiting {
			return nil, ErrExpired
		}
	default:
		w.waiting = true
	}
	c.watchers.add(w)
	return w, nil
}

// place finds the watcher's place in the ring.
func (w *Watcher) place() {
	ring := &w.cache.ring
	w.next = ring.after(w.after)
	if w.everything() {
		return
	}
	for n := w.next; n < ring.end; n++ {
		if w.concerns(ring.at(n)) {
			w.pending = append(w.pending, n)
		}
	}
}

func (w *Watcher) everything() bool { return w.scope == Scope{} }

func (w *Watcher) concerns(r *record) bool {
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

// Next waits for events and returns them, with the revision up to which the watcher has seen everything. It
// returns without events after RequestProgress, and fails with ErrExpired if the watcher has fallen behind, with
// ErrDropped if the cache has been dropped.
func (w *Watcher) Next(ctx context.Context) ([]Event, int64, error) {
	for {
		asked := w.asked.Swap(false)
		events, err := w.take()
		if errors.Is(err, errNoPlace) {
			err = w.placeInHistory(ctx)
			w.asked.Store(asked || w.asked.Load())
			if err == nil {
				continue
			}
		}
		if err != nil {
			return nil, 0, err
		}
		if len(events) > 0 || asked {
			return events, w.seen.Load(), nil
		}
		select {
		case <-w.wake:
		case <-ctx.Done():
			return nil, 0, ctx.Err()
		}
	}
}

// errNoPlace says that the cache must get events from before it was filled, for the watcher to have a place.
var errNoPlace = errors.New("before the first event held")

// placeInHistory finds the watcher's place among events that the store still has.
func (w *Watcher) placeInHistory(ctx context.Context) error {
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
		w.place()
	}
	return nil
}

// RequestProgress makes Next return even if there are no events.
func (w *Watcher) RequestProgress() {
	w.asked.Store(true)
	w.signal()
}

// Revision is that up to which the watcher has seen everything.
func (w *Watcher) Revision() int64 { return w.seen.Load() }

// Oldest returns the revision after which the cache holds all events.
func (w *Watcher) Oldest() int64 { return w.cache.Oldest() }

// Oldest returns the revision after which the cache holds all events.
func (c *Cache) Oldest() int64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.ring.floor
}

// Close gives up the watcher's place.
func (w *Watcher) Close() {
	w.cache.mu.Lock()
	defer w.cache.mu.Unlock()
	w.cache.watchers.remove(w)
}

// take returns the events that are there. What the progress says is read first: the ring holds all up to it.
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
		return nil, errNoPlace
	}
	if w.waiting {
		return nil, nil
	}
	var events []Event
	var more bool
	if w.everything() {
		events, more = w.takeRing()
	} else {
		events, more = w.takePending()
	}
	switch {
	case more:
		seen = events[len(events)-1].Revision - 1 // others may have the same revision
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

// behind tells whether events have been dropped that the watcher should have got.
func (w *Watcher) behind() bool {
	if w.waiting {
		return false
	}
	if w.everything() {
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
