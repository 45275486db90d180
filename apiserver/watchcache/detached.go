package watchcache

import "quorate.dev/apiserver/storage"

// Detached returns an entry for a value that the cache does not hold, such as an old revision. Its encodings are not
// shared.
func (c *Cache) Detached(v storage.Value) *Entry {
	entry := &Entry{
		cache: c, path: v.Path, stored: v.Data, revision: v.Revision, created: v.Created,
		labels: &labelSet{set: c.extractLabels(v.Path, v.Data)},
	}
	if c.extract.Remote {
		entry.remote.Store(&remoteState{private: true})
	}
	return detached(entry)
}

func detached(e *Entry) *Entry {
	e.retired = true // without budget.mu: no other goroutine has the entry yet
	return e
}
