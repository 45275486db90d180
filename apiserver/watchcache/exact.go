package watchcache

import (
	"context"
	"slices"
	"time"
)

const (
	// maxRetained bounds the number of snapshots that a cache retains, and retainedTime their age.
	maxRetained  = 16
	retainedTime = 5 * time.Minute
	// checkInterval is the number of events that derive handles between two checks of its context.
	checkInterval = 1024
)

// retained is a snapshot that is kept for later pages of a list.
type retained struct {
	snapshot *Snapshot
	expires  time.Time
	dropped  int64 // ring.dropped when the snapshot was retained
}

// Retain keeps a snapshot for At and Exact. The cache drops the snapshot after 5 minutes, after 16 others, or when
// more bytes of events than a ring may hold have left the ring since.
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

// expire drops the retained snapshots that are too old, compacted in the store, or too large. Once an object has been
// replaced and the event has left the ring, only the snapshot holds the object; the bytes of the events that have
// left the ring since estimate the size of all such objects. The caller holds the lock.
func (c *Cache) expire(now time.Time) {
	compacted := c.caches.compacted.Load()
	c.retained = slices.DeleteFunc(c.retained, func(r retained) bool {
		return now.After(r.expires) || c.ring.dropped-r.dropped > c.ring.maxBytes || r.snapshot.revision < compacted
	})
}

// At returns the state at exactly a revision if it is the current or a retained state and the store has not compacted
// it.
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

// recall returns the retained state at a revision. The caller holds the lock.
func (c *Cache) recall(revision int64) (*Snapshot, bool) {
	for _, r := range c.retained {
		if r.snapshot.isAt(revision) {
			return r.snapshot.at(revision), true
		}
	}
	return nil, false
}

// Exact returns the state at exactly a revision. It fails with ErrExpired if the ring does not reach back to the
// revision, or the store has compacted it. Like Snapshot, it waits for a future revision.
func (c *Cache) Exact(ctx context.Context, revision int64) (*Snapshot, error) {
	if _, err := c.Snapshot(ctx, revision); err != nil {
		return nil, err
	}
	if found, ok := c.At(revision); ok {
		return found, nil
	}
	// Only one call at a time derives: the next one often finds the state that it needs.
	select {
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

// derive builds the state at a revision by undoing the events after it. For each object, only the first event after the
// revision counts: its previous state is the object's state at the revision. The result has no index. The caller holds
// deriving, because Clone must not be called concurrently on the same tree. derive holds no other lock while it undoes
// events, so that neither the stream nor readers wait for it. kube-apiserver keeps a clone of its B-tree for each event
// instead (storeSnapshotter).
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

// since returns the current tree, the events after a revision, and a snapshot without a tree, which spans the
// revisions from the last event up to the revision until just before the next one. past is nil if the ring does not
// hold all events after the revision.
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
	// The lock of Cache.mu excludes publish, so that this tree contains exactly the events of the ring.
	return c.current.Load().tree, events, past
}
