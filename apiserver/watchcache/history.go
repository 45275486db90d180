package watchcache

import (
	"context"
	"errors"
	"time"

	"quorate.dev/apiserver/storage"
)

const (
	// historyMargin is the number of revisions before the requested one from which history is fetched too: after a
	// restart of the server, many clients reconnect with slightly different revisions.
	historyMargin = 1000
	// maxHistory bounds the number of events that extend fetches. A watch from before them expires.
	maxHistory = 10_000
	// historyPoll is the time without a response after which progress is requested while history is fetched.
	historyPoll = 50 * time.Millisecond
)

// extend adds the events after a revision and before the cache was filled to the ring, if the store still has them.
// Clients whose revision comes from another server, or from before a restart, can then continue their watches without
// a new list. extend waits for etcd and, for encrypted values, for a KMS plugin. It fails with ErrExpired if the
// events are lost.
func (c *Cache) extend(ctx context.Context, after int64) error {
	// Only one call at a time fetches: the next one usually finds the events that it needs in the ring.
	select {
	case c.extending <- struct{}{}:
		defer func() { <-c.extending }()
	case <-ctx.Done():
		return ctx.Err()
	}
	c.mu.RLock()
	floor, epoch, possible := c.ring.floor, c.epoch, c.extensible(after)
	c.mu.RUnlock()
	if floor <= after {
		return nil
	}
	if !possible {
		return ErrExpired
	}
	from := max(after-historyMargin, 1)
	events, err := c.history(ctx, from, floor)
	var unreadable *storage.TransformError
	if errors.Is(err, storage.ErrCompacted) || errors.Is(err, ErrExpired) {
		from = after
		events, err = c.history(ctx, from, floor)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if errors.Is(err, storage.ErrCompacted) || errors.Is(err, ErrExpired) {
		c.forgotten = max(c.forgotten, after)
		return ErrExpired
	}
	if errors.As(err, &unreadable) {
		return ErrExpired // forgotten stays: the KMS plugin may only be unavailable for a while
	}
	if err != nil {
		return err
	}
	if c.epoch != epoch || c.ring.floor != floor || c.state != ready {
		return ErrExpired
	}
	c.prepend(events, from)
	return nil
}

// extensible reports whether extend may succeed for a revision: the ring still begins where the cache was filled,
// earlier attempts have not failed permanently, and etcd's progress notifications are reliable. The caller holds the
// lock.
func (c *Cache) extensible(after int64) bool {
	return c.state == ready && c.ring.floor == c.filled && after > c.forgotten && c.caches.store.SupportsProgress()
}

// history fetches the events of the collection after the first revision, up to and including the second, from the
// store.
func (c *Cache) history(ctx context.Context, after, until int64) ([]storage.Event, error) {
	stream, err := c.caches.store.History(ctx, c.prefix, after)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	var events []storage.Event
	for reached := after; reached < until; {
		limited, cancel := context.WithTimeout(ctx, historyPoll)
		batch, err := stream.Next(limited)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = stream.RequestProgress()
		}
		if err != nil {
			return nil, err
		}
		for _, event := range batch.Events {
			if event.Revision > until {
				break
			}
			if event.Replaced == 0 && event.Created != event.Revision {
				return nil, ErrExpired // etcd has compacted the previous state, although not the event
			}
			events = append(events, event)
		}
		if len(events) > maxHistory {
			return nil, ErrExpired
		}
		reached = max(reached, batch.Revision)
	}
	return events, c.caches.store.Decrypt(ctx, events)
}

// prepend adds the events after a revision in front of the ring, and lowers ring.floor to the revision. events must
// be all events between the revision and the present floor. The caller holds the lock.
func (c *Cache) prepend(events []storage.Event, after int64) {
	now := c.caches.clock.Now().UnixNano()
	records := make([]*record, 0, len(events))
	known := map[string]*Entry{} // for each path, the entry of its last event so far
	for _, event := range events {
		r := &record{kind: Modified, received: now, previous: known[event.Path]}
		if r.previous == nil && event.Replaced > 0 {
			r.previous = c.historicalEntry(event.Path, event.Previous, event.Replaced)
		}
		switch {
		case event.Data == nil:
			r.kind, r.entry = Deleted, r.previous.deleted(event.Revision)
			delete(known, event.Path)
		default:
			r.entry = c.historicalEntry(event.Path, event.Data, event.Revision)
			known[event.Path] = r.entry
		}
		if event.Replaced == 0 {
			r.kind, r.previous = Added, nil
		}
		records = append(records, r)
	}
	for i := len(records) - 1; i >= 0; i-- {
		records[i].holders++
		records[i].entry.holders++
		c.ring.unshift(records[i])
	}
	c.ring.floor, c.filled = after, after
}

// historicalEntry returns an entry for an earlier revision of an object: the entry in tree if it has that revision,
// else a new one, whose labels are not in labelSets.
func (c *Cache) historicalEntry(path string, data []byte, revision int64) *Entry {
	if present, ok := c.tree.Get(item{path: path}); ok && present.entry.revision == revision {
		return present.entry
	}
	return &Entry{
		cache: c, path: path, stored: data, revision: revision, labels: &labelSet{set: c.extractLabels(path, data)},
	}
}
