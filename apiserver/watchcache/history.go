package watchcache

import (
	"context"
	"errors"
	"time"

	"quorate.dev/apiserver/storage"
)

const (
	// historyMargin is how many revisions before the one asked for are fetched too: where one client comes back
	// after a restart of the server, others come with somewhat older revisions.
	historyMargin = 1000
	// maxHistory bounds the events fetched.
	maxHistory = 10_000
	// historyPoll is the time between requests for progress while history is fetched.
	historyPoll = 50 * time.Millisecond
)

// extend puts the events before the cache was filled into its ring, as long as the store still has them, so that
// clients who knew an earlier revision, from another server or from before a restart, need not start anew.
func (c *Cache) extend(ctx context.Context, after int64) error {
	select { // one at a time: mostly the others find what they need when it is their turn
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
	if err != nil {
		return err
	}
	if c.epoch != epoch || c.ring.floor != floor || c.state != ready {
		return ErrExpired
	}
	c.prepend(events, from)
	return nil
}

// extensible tells whether events from before the ring can be put into it: it begins where the cache was filled,
// the store still has them, and its progress answers are reliable. The caller holds the lock.
func (c *Cache) extensible(after int64) bool {
	return c.state == ready && c.ring.floor == c.filled && after > c.forgotten && c.caches.store.SupportsProgress()
}

// history fetches the events after one revision, up to another.
func (c *Cache) history(ctx context.Context, after, until int64) ([]storage.Event, error) {
	feed, err := c.caches.store.History(ctx, c.prefix, after)
	if err != nil {
		return nil, err
	}
	defer feed.Close()
	var events []storage.Event
	for reached := after; reached < until; {
		limited, cancel := context.WithTimeout(ctx, historyPoll)
		batch, err := feed.Next(limited)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
			err = feed.RequestProgress()
		}
		if err != nil {
			return nil, err
		}
		for _, event := range batch.Events {
			if event.Revision > until {
				break
			}
			if event.Replaced == 0 && event.Created != event.Revision {
				return nil, ErrExpired // compaction was faster: what the event replaced is gone
			}
			events = append(events, event)
		}
		if len(events) > maxHistory {
			return nil, ErrExpired
		}
		reached = max(reached, batch.Revision)
	}
	return events, nil
}

// prepend puts events before those of the ring, which then holds all after a revision. The caller holds the lock.
func (c *Cache) prepend(events []storage.Event, after int64) {
	now := c.caches.clock.Now().UnixNano()
	records := make([]*record, 0, len(events))
	known := map[string]*Entry{} // the last entry of each path
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

// past returns the entry of an earlier revision, or the present one if it is that. It does not share its labels.
func (c *Cache) historicalEntry(path string, data []byte, revision int64) *Entry {
	if present, ok := c.tree.Get(item{path: path}); ok && present.entry.revision == revision {
		return present.entry
	}
	return &Entry{
		cache: c, path: path, stored: data, revision: revision, labels: &labelSet{set: c.extractLabels(path, data)},
	}
}
