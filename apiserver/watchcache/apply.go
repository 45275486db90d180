package watchcache

import (
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/storage"
)

// apply applies events of this collection. While the collection is being read, it buffers them for install.
func (c *Cache) apply(events []storage.Event, now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.received.Add(int64(len(events)))
	switch c.state {
	case loading:
		c.buffered = append(c.buffered, events...)
	case ready:
		for _, event := range events {
			c.applyEvent(event, now)
		}
		c.publish()
	}
}

// applyEvent changes the tree and notifies watchers. It ignores events up to the revision of the read, which contained
// them already: the watch stream may lag behind the read. The caller holds the lock and publishes afterwards.
func (c *Cache) applyEvent(event storage.Event, now int64) {
	if event.Revision <= c.read {
		return
	}
	c.changed = max(c.changed, event.Revision)
	if event.Data == nil {
		c.remove(event.Path, event.Revision, now)
		return
	}
	c.put(c.newEntry(event.Path, event.Data, event.Revision, event.Created), now)
}

func (c *Cache) put(entry *Entry, now int64) {
	entry.holders++
	replaced, existed := c.tree.ReplaceOrInsert(item{path: entry.path, entry: entry})
	c.index.replace(replaced.entry, entry)
	c.stored += int64(len(entry.stored))
	c.attachOffer(entry)
	if !existed {
		c.record(&record{kind: Added, entry: entry, received: now})
		return
	}
	c.record(&record{kind: Modified, entry: entry, previous: replaced.entry, received: now})
	c.releaseEntry(replaced.entry)
}

func (c *Cache) remove(path string, revision, now int64) {
	removed, existed := c.tree.Delete(item{path: path})
	if !existed {
		return
	}
	c.index.replace(removed.entry, nil)
	c.record(&record{kind: Deleted, entry: removed.entry.deleted(revision), previous: removed.entry, received: now})
	c.releaseEntry(removed.entry)
}

// releaseEntry releases the tree's hold on an entry.
func (c *Cache) releaseEntry(entry *Entry) {
	c.stored -= int64(len(entry.stored))
	c.labels.release(entry.labels)
	c.release(&entry.encodings)
}

// release releases one hold on the owner of encodings.
func (c *Cache) release(owner *encodings) {
	if owner.holders--; owner.holders == 0 {
		c.budget().retire(owner)
	}
}

// record adds an event to the ring and dispatches it to the watchers whose scope it matches.
func (c *Cache) record(added *record) {
	added.entry.holders++
	added.holders++
	sequence := c.ring.push(added)
	c.trim(added.received)
	c.watchers.dispatch(c, added, sequence)
}

// trim drops the oldest events until the ring is within its limits.
func (c *Cache) trim(now int64) {
	for c.ring.outdated(now) {
		oldest := c.ring.pop()
		c.release(&oldest.entry.encodings)
		c.release(&oldest.encodings)
	}
}

// publish makes the tree visible to readers. The caller holds the lock.
func (c *Cache) publish() {
	c.current.Store(&view{tree: c.tree.Clone(), index: c.index.clone(), changed: c.changed})
	c.stats.objects.Store(int64(c.tree.Len()))
	c.stats.stored.Store(c.stored)
	c.stats.capacity.Store(int64(len(c.ring.records)))
}

// Offer gives the cache an encoding, trimmed by Format.Trim, that the response to a write needed anyway. Offer attaches
// it to the entry of that revision at once, or when the event of the write arrives.
func (c *Cache) Offer(path string, revision int64, format encoding.Format, encoded []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != ready {
		return
	}
	found, ok := c.tree.Get(item{path: path})
	switch {
	case ok && found.entry.revision == revision:
		c.attach(found.entry, format, encoded)
	case c.changed < revision:
		c.offers.add(offer{path: path, revision: revision, format: format, encoded: encoded})
	}
}

func (c *Cache) attachOffer(entry *Entry) {
	for _, o := range c.offers.take(entry.path, entry.revision) {
		c.attach(entry, o.format, o.encoded)
	}
}

// attach does nothing if the entry has the encoding or a reader makes it, because waiting would hold the lock.
func (c *Cache) attach(entry *Entry, format encoding.Format, encoded []byte) {
	if entry.find(format) != nil {
		return
	}
	_, _ = entry.get(c.budget(), format, func() ([]byte, error) { return encoded, nil })
}

// maxOffers bounds the paths with pending offers.
const maxOffers = 1024

// offer is an encoding whose write the watch stream has not delivered yet.
type offer struct {
	path     string
	revision int64
	format   encoding.Format
	encoded  []byte
}

// offers are pending offers by path. Invariant: no list is empty, and lists are in order of arrival.
type offers map[string][]offer

func (o offers) add(added offer) {
	if len(o) < maxOffers {
		o[added.path] = append(o[added.path], added)
	}
}

// take returns the offers for a revision of a path, and removes them and all earlier ones.
func (o offers) take(path string, revision int64) []offer {
	if len(o) == 0 {
		return nil
	}
	var due, later []offer
	for _, offered := range o[path] {
		switch {
		case offered.revision == revision:
			due = append(due, offered)
		case offered.revision > revision:
			later = append(later, offered)
		}
	}
	delete(o, path)
	if later != nil {
		o[path] = later
	}
	return due
}

// forget drops offers of events up to a revision, which have all been delivered.
func (o offers) forget(seen int64) {
	for path, list := range o {
		if list[len(list)-1].revision <= seen {
			delete(o, path)
		}
	}
}
