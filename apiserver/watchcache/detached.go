package watchcache

import "quorate.dev/apiserver/storage"

// Detached returns an entry for a value that the cache does not hold, such as an old revision. Its encodings are not
// kept, and its labels are not shared.
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

// detached retires an entry that no other goroutine has yet, so that its encodings are not kept.
func detached(e *Entry) *Entry {
	e.retired, e.detached = true, true // needs no lock: no other goroutine has the entry yet
	return e
}

// KeepsEncodings reports whether the entry keeps encodings for other requests. A detached entry does not.
func (e *Entry) KeepsEncodings() bool { return !e.detached }
