package watchcache

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"quorate.dev/apiserver/storage"
)

// StoredWatcher is a watch of the store that bypasses the cache. Only watches of resources that the flags for watch
// caches exclude from caching use it; a Watcher serves all others. It has its own watch of etcd, which sends each event
// of the prefix to each StoredWatcher, and its events and entries are not shared with other watchers: n watches cost n
// times the decryption and the encoding. The two have the same methods and deliver events in the same order, but a
// StoredWatcher does not filter by Scope. It needs no goroutine in this package. Next must not be called concurrently.
type StoredWatcher struct {
	cache  *Cache
	stream *storage.WatchStream
	// seen is the revision up to which the watcher has returned all events.
	seen atomic.Int64
	// progress makes the next call of Next return the revision seen without waiting.
	progress atomic.Bool
}

// WatchStored watches the paths below a prefix that ends in a slash, or one path, after a revision. The watch ends
// with ctx or Close.
func (c *Cache) WatchStored(ctx context.Context, prefix string, after int64) (*StoredWatcher, error) {
	stream, err := c.caches.store.History(ctx, prefix, after)
	if err != nil {
		return nil, err
	}
	w := &StoredWatcher{cache: c, stream: stream}
	w.seen.Store(after)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == dropped {
		stream.Close()
		return nil, ErrDropped
	}
	if c.storedWatchers == nil {
		c.storedWatchers = map[*StoredWatcher]struct{}{}
	}
	c.storedWatchers[w] = struct{}{}
	return w, nil
}

// Next waits for events, and returns them with the revision up to which the watcher has returned all events. After a
// progress notification it returns no events. It fails with ErrExpired if events are lost, and with ErrDropped if the
// cache is dropped.
func (w *StoredWatcher) Next(ctx context.Context) ([]Event, int64, error) {
	if w.progress.Swap(false) {
		return nil, w.seen.Load(), nil
	}
	batch, err := w.stream.Next(ctx)
	switch {
	case w.cache.isDropped(): // Drop has closed the stream: the definition by which events are read has changed
		return nil, 0, ErrDropped
	case errors.Is(err, storage.ErrCompacted):
		return nil, 0, ErrExpired
	case err != nil:
		return nil, 0, err
	}
	if err := w.cache.caches.store.Decrypt(ctx, batch.Events); err != nil {
		return nil, 0, err
	}
	events := make([]Event, 0, len(batch.Events))
	for _, event := range batch.Events {
		converted, err := w.cache.storedEvent(event)
		if err != nil {
			return nil, 0, err
		}
		events = append(events, converted)
	}
	w.seen.Store(max(w.seen.Load(), batch.Revision))
	return events, w.seen.Load(), nil
}

// storedEvent returns an event of the store as an Event that shares nothing with the cache. It fails with ErrExpired
// if etcd has compacted the state before the event.
func (c *Cache) storedEvent(event storage.Event) (Event, error) {
	if event.Replaced == 0 && event.Created != event.Revision {
		return Event{}, fmt.Errorf("%w: the state before revision %d of %s is compacted", ErrExpired,
			event.Revision, event.Path)
	}
	r := &record{kind: Modified}
	r.retired = true
	if event.Replaced > 0 {
		r.previous = c.Detached(storage.Value{Path: event.Path, Data: event.Previous, Revision: event.Replaced})
	} else {
		r.kind = Added
	}
	if event.Data == nil {
		r.kind, r.entry = Deleted, detached(r.previous.deleted(event.Revision))
	} else {
		r.entry = c.Detached(storage.Value{
			Path: event.Path, Data: event.Data, Revision: event.Revision, Created: event.Created,
		})
	}
	return r.event(), nil
}

// RequestProgress makes a call of Next return even if there are no events: when etcd's progress notification arrives
// or, with an etcd whose progress notifications are not reliable, immediately.
func (w *StoredWatcher) RequestProgress() {
	if !w.cache.caches.store.SupportsProgress() || w.stream.RequestProgress() != nil {
		w.progress.Store(true)
	}
}

// Revision returns the revision up to which the watcher has returned all events.
func (w *StoredWatcher) Revision() int64 { return w.seen.Load() }

// Oldest returns 0: the store does not report the oldest revision that a watch can start after.
func (w *StoredWatcher) Oldest() int64 { return 0 }

// Close ends the watch.
func (w *StoredWatcher) Close() {
	w.stream.Close()
	w.cache.mu.Lock()
	defer w.cache.mu.Unlock()
	delete(w.cache.storedWatchers, w)
}
