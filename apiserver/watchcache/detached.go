package watchcache

import "quorate.dev/apiserver/storage"

// Detached returns an entry for a value that the cache does not hold, such as an old revision. Its encodings are
// made for each who asks.
func (c *Cache) Detached(v storage.Value) *Entry {
	return detached(&Entry{
		cache: c, path: v.Path, stored: v.Data, revision: v.Revision, created: v.Created,
		labels: &labelSet{set: c.extractLabels(v.Path, v.Data)},
	})
}

// Hidden returns the state before the event at the event's revision: what a watcher that may not see the new state
// is told has gone.
func (e Event) Hidden() *Entry { return detached(e.Previous.deleted(e.Revision)) }

func detached(e *Entry) *Entry {
	e.retired = true // nobody has seen it yet, so no lock is needed
	return e
}
