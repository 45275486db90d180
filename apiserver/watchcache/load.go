package watchcache

import (
	"context"
	"slices"

	"quorate.dev/apiserver/storage"
)

// pageSize is the number of objects per request to the store while a collection is listed without a stream.
const pageSize = 10_000

// load starts a goroutine that lists the collection as soon as Run has opened the watch stream.
func (c *Cache) load() {
	go c.fetch(c.caches.ctx)
}

// fetch lists the collection and installs it, with retries until it succeeds or ctx ends. It blocks.
func (c *Cache) fetch(ctx context.Context) {
	select {
	case <-c.caches.live:
	case <-ctx.Done():
		return
	}
	began := c.caches.clock.Now()
	for backoff := minBackoff; ; backoff = min(2*backoff, maxBackoff) {
		done, err := c.fetchOnce(ctx)
		if done {
			c.stats.loads.observe(c.caches.clock.Since(began), loadBuckets)
		}
		if done || ctx.Err() != nil {
			return
		}
		if err != nil {
			c.stats.failures.Add(1)
			c.caches.log.Error(err, "Could not read a collection; retrying", "path", c.path)
			c.caches.sleep(ctx, backoff)
		}
	}
}

// fetchOnce lists the collection while events are buffered. It returns done if the list was installed or the cache
// was dropped. It returns neither done nor an error if events were lost during the list.
func (c *Cache) fetchOnce(ctx context.Context) (done bool, err error) {
	select {
	case c.caches.loads <- struct{}{}:
		defer func() { <-c.caches.loads }()
	case <-ctx.Done():
		return false, ctx.Err()
	}
	epoch, ok := c.begin()
	if !ok {
		return true, nil
	}
	entries, revision, err := c.list(ctx)
	if err == nil && c.install(epoch, entries, revision) {
		return true, nil
	}
	for _, entry := range entries {
		c.labels.release(entry.labels)
	}
	if err != nil {
		c.mu.Lock()
		c.failure = err
		c.mu.Unlock()
	}
	return false, err
}

// begin starts to buffer events and returns the present epoch. The list that follows contains all events before. It
// returns false if the cache was dropped.
func (c *Cache) begin() (epoch int, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == dropped {
		return 0, false
	}
	c.state, c.buffered = loading, nil
	return c.epoch, true
}

// list returns all entries of the collection at one revision, sorted by path. After an error it returns the entries
// so far, whose labels the caller must release.
func (c *Cache) list(ctx context.Context) ([]*Entry, int64, error) {
	var entries []*Entry
	var revision int64
	for page, err := range c.caches.store.Pages(ctx, c.prefix, storage.ListOptions{PageSize: pageSize}) {
		if err != nil {
			return entries, 0, err
		}
		c.protect(page.Protection)
		entries = slices.Grow(entries, len(page.Values)+int(page.Remaining))
		for _, value := range page.Values {
			entries = append(entries, c.entryOf(value))
		}
		revision = page.Revision
	}
	c.CountStoredList(len(entries), 0, len(entries))
	return entries, revision, nil
}

// install replaces the state of the cache by a list of the collection at a revision and the events buffered since.
// Existing watchers get the differences as events. It returns false if the list must be repeated because the epoch
// has changed.
func (c *Cache) install(epoch int, entries []*Entry, revision int64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == dropped {
		return true
	}
	if c.epoch != epoch {
		return false
	}
	now := c.caches.clock.Now().UnixNano()
	if c.tree == nil {
		c.fill(entries)
		c.filled = max(c.ring.floor, revision)
	} else {
		c.reconcile(entries, revision, now)
	}
	c.changed = max(c.changed, revision)
	c.ring.floor = max(c.ring.floor, revision)
	c.read = revision
	for _, event := range c.buffered {
		c.applyEvent(event, now)
	}
	c.buffered = nil
	c.state, c.failure = ready, nil
	c.publish()
	c.stats.initializations.Add(1)
	c.watchers.settle(c)
	close(c.settled)
	return true
}

// fill sets tree and index of a cache that has none. No events are dispatched. The caller holds the lock.
func (c *Cache) fill(entries []*Entry) {
	c.tree, c.index = newTree(), newIndex(c.extract.Index)
	for _, entry := range entries {
		entry.holders++
		c.stored += int64(len(entry.stored))
		c.tree.ReplaceOrInsert(item{path: entry.path, entry: entry})
		c.index.replace(nil, entry)
	}
}

// reconcile replaces the contents, which were last valid before events were lost, with the listed entries, and
// dispatches the differences as events. Deletions come last and have the revision of the list, because their own
// revisions are unknown. It takes O(n log n).
func (c *Cache) reconcile(entries []*Entry, revision, now int64) {
	present := make(map[string]bool, len(entries))
	var changed []*Entry
	for _, entry := range entries {
		present[entry.path] = true
		if old, ok := c.tree.Get(item{path: entry.path}); ok && old.entry.revision == entry.revision {
			c.labels.release(entry.labels)
			continue
		}
		changed = append(changed, entry)
	}
	slices.SortFunc(changed, func(a, b *Entry) int { return int(a.revision - b.revision) })
	for _, entry := range changed {
		c.recreate(entry, now)
		c.put(entry, now)
	}
	var deleted []string
	c.tree.Ascend(func(i item) bool {
		if !present[i.path] {
			deleted = append(deleted, i.path)
		}
		return true
	})
	for _, path := range deleted {
		c.remove(path, revision, now)
	}
}

// recreate dispatches the deletion of an object that was deleted and created again while events were lost. The
// deletion gets the revision of the new creation.
func (c *Cache) recreate(entry *Entry, now int64) {
	old, ok := c.tree.Get(item{path: entry.path})
	if ok && old.entry.created != entry.created {
		c.remove(entry.path, entry.created, now)
	}
}

// invalidate withdraws the published state because events were lost. It reports whether the caller must call fetch.
// back also drops the contents and expires all watchers: the store has returned to an earlier revision, so that the
// revisions of clients belong to other states, or the contents are wrong.
func (c *Cache) invalidate(back bool) (fetch bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.epoch++
	if back {
		c.forget()
	}
	c.watchers.expireAhead(c.caches.Revision())
	if c.state != ready {
		// An idle or dropped cache needs no list; the fetch of a loading one finds that the epoch has changed, and
		// lists again.
		return false
	}
	c.state, c.buffered = loading, nil
	c.current.Store(nil)
	c.settled, c.unready = make(chan struct{}), c.caches.clock.Now()
	return true
}

// forget drops the contents, events and offers, and expires all watchers. The caller holds the lock.
func (c *Cache) forget() {
	for c.ring.end > c.ring.first {
		oldest := c.ring.pop()
		c.release(&oldest.entry.encodings)
		c.release(&oldest.encodings)
	}
	if c.tree != nil {
		c.tree.Ascend(func(i item) bool { c.releaseEntry(i.entry); return true })
	}
	c.tree, c.index, c.retained = nil, nil, nil
	c.changed, c.read, c.ring.floor, c.forgotten = 0, 0, 0, 0
	clear(c.offers)
	c.watchers.expireAll()
}

// drop makes the cache permanently unusable. Its watchers fail with ErrDropped instead of ErrExpired: their clients
// can continue with the next cache of the collection at the same revision.
func (c *Cache) drop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	settled := c.state == ready
	c.state = dropped
	c.current.Store(nil)
	c.forget()
	for w := range c.storedWatchers {
		w.stream.Close()
	}
	if !settled {
		close(c.settled)
	}
}
