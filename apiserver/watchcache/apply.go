package watchcache

import (
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/storage"
)

// apply applies events of the collection in the order of their revisions. While the collection is being listed, it
// buffers them for install; while the cache is idle or dropped, it ignores them. Only the goroutine of Run calls it.
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

// applyEvent changes tree and index by one event and notifies watchers. It ignores events up to the revision of the
// last list, which contained them already: the watch stream may lag behind the list. The caller holds the lock and
// calls publish afterwards.
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

// put adds an entry to tree and index, or replaces the entry of its path, and dispatches the event. A record holds its
// entry but not its previous entry, of which watchers need the stored bytes, labels and fields, but no encodings. The
// caller holds the lock and calls publish afterwards.
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

// remove removes the entry of a path and dispatches the deletion, whose record has a new entry: the last state of the
// object at the revision of the deletion. It ignores a path without an entry. The caller holds the lock and calls
// publish afterwards.
func (c *Cache) remove(path string, revision, now int64) {
	removed, existed := c.tree.Delete(item{path: path})
	if !existed {
		return
	}
	c.index.replace(removed.entry, nil)
	c.record(&record{kind: Deleted, entry: removed.entry.deleted(revision), previous: removed.entry, received: now})
	c.releaseEntry(removed.entry)
}

// releaseEntry must be called when an entry has been removed from tree. It releases the tree's hold on the entry, and
// the entry's labels.
func (c *Cache) releaseEntry(entry *Entry) {
	c.stored -= int64(len(entry.stored))
	c.labels.release(entry.labels)
	c.release(&entry.encodings)
}

// release releases one hold of tree or ring on the owner of encodings, and retires the owner after the last one.
func (c *Cache) release(owner *encodings) {
	if owner.holders--; owner.holders == 0 {
		c.budget().retire(owner)
	}
}

// record adds an event to the ring and dispatches it to the watchers whose scope it matches. The caller holds the
// lock.
func (c *Cache) record(added *record) {
	added.entry.holders++
	added.holders++
	sequence := c.ring.push(added)
	c.trim(added.received)
	c.watchers.dispatch(c, added, sequence)
}

// trim drops the oldest events until the ring is within its limits. The caller holds the lock.
func (c *Cache) trim(now int64) {
	for c.ring.outdated(now) {
		oldest := c.ring.pop()
		c.release(&oldest.entry.encodings)
		c.release(&oldest.encodings)
	}
}

// publish makes the present tree and index the state that readers see. Cloning them costs O(1); the next changes copy
// the nodes that they touch. The caller holds the lock.
func (c *Cache) publish() {
	c.current.Store(&view{tree: c.tree.Clone(), index: c.index.clone(), changed: c.changed})
	c.stats.objects.Store(int64(c.tree.Len()))
	c.stats.stored.Store(c.stored)
	c.stats.capacity.Store(int64(len(c.ring.records)))
}

// Offer gives the cache an encoding, trimmed by Format.Trim, that the response to a write needed anyway. Offer
// attaches the encoding to the entry of that revision, or keeps it until the event of the write arrives.
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

// attachOffer adds the encodings that have been offered for an entry before its event arrived.
func (c *Cache) attachOffer(entry *Entry) {
	for _, o := range c.offers.take(entry.path, entry.revision) {
		c.attach(entry, o.format, o.encoded)
	}
}

// attach adds an encoding to an entry that has none in the format. If a reader is making one, attach leaves it alone,
// because waiting for the reader would hold the lock. (A reader that begins after attach has looked is waited for.)
func (c *Cache) attach(entry *Entry, format encoding.Format, encoded []byte) {
	if entry.find(format) != nil {
		return
	}
	_, _ = entry.get(c.budget(), format, func() ([]byte, error) { return encoded, nil })
}

// maxOffers bounds the number of paths with pending offers.
const maxOffers = 1024

// offer is an encoding of an object whose write the watch stream has not delivered yet.
type offer struct {
	path     string
	revision int64
	format   encoding.Format
	encoded  []byte
}

// offers has the pending offers of each path. Invariant: no list is empty, and each list is in the order of arrival.
type offers map[string][]offer

// add adds an offer, unless too many paths have offers already: an offer is only an optimization.
func (o offers) add(added offer) {
	if len(o) < maxOffers {
		o[added.path] = append(o[added.path], added)
	}
}

// take removes the offers for a path up to a revision, and returns those for exactly that revision.
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

// forget drops the offers of paths whose last offer is for a revision up to seen: the events of these writes have
// been delivered.
func (o offers) forget(seen int64) {
	for path, list := range o {
		if list[len(list)-1].revision <= seen {
			delete(o, path)
		}
	}
}
