package watchcache

import (
	"context"
	"slices"
	"time"
)

const (
	// maxRetained is how many snapshots are retained per cache, and for how long at most.
	maxRetained  = 16
	retainedTime = 5 * time.Minute
	// checkInterval is how many events are undone between two looks at the caller's context.
	checkInterval = 1024
)

// retained is a snapshot kept for readers who come back to its revision.
type retained struct {
	snapshot *Snapshot
	expires  time.Time
	dropped  int64 // the ring's, when the snapshot was retained
}

// Retain keeps a snapshot for At and Exact: for some minutes, as long as not too many others are retained later, and as
// long as the objects that only it holds are not larger than a ring.
func (c *Cache) Retain(snapshot *Snapshot) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := c.caches.clock.Now()
	c.expire(now)
	if _, ok := c.recall(snapshot.revision); ok {
		return
	}
	if len(c.retained) >= maxRetained {
		c.retained = slices.Delete(c.retained, 0, 1)
	}
	c.retained = append(c.retained, retained{snapshot: snapshot, expires: now.Add(retainedTime), dropped: c.ring.dropped})
}

// expire drops retained snapshots whose time is over, that hold too much, or that the store itself has compacted. What
// only a snapshot holds are the objects that were replaced after it and have left the ring since. The caller holds the
// lock.
func (c *Cache) expire(now time.Time) {
	compacted := c.caches.compacted.Load()
	c.retained = slices.DeleteFunc(c.retained, func(r retained) bool {
		return now.After(r.expires) || c.ring.dropped-r.dropped > c.ring.maxBytes || r.snapshot.revision < compacted
	})
}

// At returns the state at exactly a revision if it is the present one or has been retained, and the store has not
// compacted it.
func (c *Cache) At(revision int64) (*Snapshot, bool) {
	if revision < c.caches.compacted.Load() {
		return nil, false
	}
	if s := c.now(); s != nil && s.isAt(revision) {
		return s.at(revision), true
	}
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.recall(revision)
}

// recall returns a retained state. The caller holds the lock.
func (c *Cache) recall(revision int64) (*Snapshot, bool) {
	for _, r := range c.retained {
		if r.snapshot.isAt(revision) {
			return r.snapshot.at(revision), true
		}
	}
	return nil, false
}

// Exact returns the state at exactly a revision, as far back as the events held reach and the store has not compacted it;
// beyond, it fails with ErrExpired. Like Snapshot, it waits for a revision that has not been reached.
func (c *Cache) Exact(ctx context.Context, revision int64) (*Snapshot, error) {
	if _, err := c.Snapshot(ctx, revision); err != nil {
		return nil, err
	}
	if found, ok := c.At(revision); ok {
		return found, nil
	}
	select { // one at a time: mostly the others find what they need when it is their turn
	case c.deriving <- struct{}{}:
		defer func() { <-c.deriving }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if found, ok := c.At(revision); ok {
		return found, nil
	}
	past, err := c.derive(ctx, revision)
	if err != nil {
		return nil, err
	}
	c.Retain(past)
	return past.at(revision), nil
}

// derive makes the state at a revision by undoing the events after it: an object was then what the first event after it
// replaced. Only one caller may do this at a time, because the present tree is cloned.
func (c *Cache) derive(ctx context.Context, revision int64) (*Snapshot, error) {
	present, events, past := c.since(revision)
	if past == nil || revision < c.caches.compacted.Load() {
		return nil, ErrExpired
	}
	past.tree = present.Clone()
	undone := make(map[string]struct{})
	for i, event := range events {
		if i%checkInterval == 0 && ctx.Err() != nil {
			return nil, ctx.Err()
		}
		path := event.entry.path
		if _, done := undone[path]; done {
			continue
		}
		undone[path] = struct{}{}
		if event.previous == nil {
			past.tree.Delete(item{path: path})
		} else {
			past.tree.ReplaceOrInsert(item{path: path, entry: event.previous})
		}
	}
	return past, nil
}

// since returns the present tree, the events in it that are newer than a revision, and the snapshot, still without a
// tree, of all revisions between the event before and the first of them; nil where not all of them are held.
func (c *Cache) since(revision int64) (present *tree, events []*record, past *Snapshot) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if c.state != ready || revision < c.ring.floor {
		return nil, nil, nil
	}
	past = &Snapshot{changed: c.ring.floor, revision: c.changed}
	first := c.ring.after(revision)
	if first > c.ring.first {
		past.changed = max(past.changed, c.ring.at(first-1).entry.revision)
	}
	if first < c.ring.end {
		past.revision = c.ring.at(first).entry.revision - 1
	}
	events = make([]*record, 0, c.ring.end-first)
	for n := first; n < c.ring.end; n++ {
		events = append(events, c.ring.at(n))
	}
	// Published under the lock that is held, so that it contains all events of the ring.
	return c.current.Load().tree, events, past
}
