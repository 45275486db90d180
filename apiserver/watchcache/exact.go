package watchcache

import (
	"context"
	"slices"
	"time"
)

const (
	// maxRetained bounds the retained snapshots of a cache, and retainedTime their age.
	maxRetained  = 16
	retainedTime = 5 * time.Minute
	// checkInterval is the number of events undone between two checks of the context.
	checkInterval = 1024
)

// retained is a snapshot kept for later pages of a list.
type retained struct {
	snapshot *Snapshot
	expires  time.Time
	dropped  int64 // ring.dropped when the snapshot was retained
}

// Retain keeps a snapshot for At and Exact. It is dropped after 5 minutes, after 16 others, or when the objects that
// only the snapshot holds become larger than a ring.
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

// expire drops retained snapshots that are too old, too large, or compacted in the store. The size of a snapshot is
// that of the objects that only it holds: those that were replaced after it and have left the ring since. The caller
// holds the lock.
func (c *Cache) expire(now time.Time) {
	compacted := c.caches.compacted.Load()
	c.retained = slices.DeleteFunc(c.retained, func(r retained) bool {
		return now.After(r.expires) || c.ring.dropped-r.dropped > c.ring.maxBytes || r.snapshot.revision < compacted
	})
}

// At returns the state at exactly a revision if it is current or retained, and the store has not compacted it.
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

// Exact returns the state at exactly a revision. It fails with ErrExpired if the ring does not reach back to it or the
// store has compacted it. Like Snapshot, it waits for a future revision.
func (c *Cache) Exact(ctx context.Context, revision int64) (*Snapshot, error) {
	if _, err := c.Snapshot(ctx, revision); err != nil {
		return nil, err
	}
	if found, ok := c.At(revision); ok {
		return found, nil
	}
	select { // one at a time: the next caller often finds the state of the one before
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

// derive builds the state at a revision by undoing the events after it: the first event of each object after the
// revision has the object's state at that time. The caller holds deriving: Clone is not safe for concurrent use on one
// tree.
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

// since returns the current tree, its events after a revision, and a snapshot without a tree that spans the revisions
// between the events around that revision. past is nil if the ring does not hold all of the events.
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
	// publish runs under the write lock, so that this tree contains all events of the ring.
	return c.current.Load().tree, events, past
}
