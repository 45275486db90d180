// Package watchcache keeps collections of a store in memory as stored bytes and shared encodings, and serves reads and
// watches from them. One watch stream of the store keeps all collections up to date.
//
// # Path of a request
//
// A read calls Cache.Latest, which asks the store for its current revision, or Cache.Snapshot with the revision that
// the client requires. Both wait until the watch stream has reached that revision and return an immutable Snapshot,
// which is read without locks. Cache.Exact returns an earlier state: a retained one, or one derived from the current
// state by undoing the events since. Entry.Encoded returns an object in a format of package encoding; all readers share
// the result.
//
// A watch is a Watcher: a position in the ring of events of its collection. Events are dispatched by scope (namespace,
// name, selected field), so that an event costs nothing for watchers of other objects. A Watcher that starts before the
// first event in the ring extends it by events from the store. One that lags behind the ring expires; it never delays
// the others. Event.Encoded returns the frame of an event; all clients that see the event alike share it.
//
// A write goes to the store. Its event updates the cache; Cache.Offer attaches the encoding that the response needed.
//
// Objects that a conversion webhook converts are converted on the first read in a version, by Convert: in batches, in a
// goroutine of the call, whose result all readers of the object share. The result is kept like an encoding, and all
// formats of the version are derived from it. Labels and selectable fields in a version are kept with the entry.
//
// # Life of a collection
//
// A cache is idle until its first use. Then it is loading: it buffers events and lists the collection. install applies
// the buffered events, and the cache is ready. If the watch stream loses events, the cache is loading again, and
// install dispatches the differences to its watchers. If the store returns to an earlier revision, because a backup was
// restored, the cache drops everything and expires its watchers.
//
// A collection that is not cached for clients is watched beside the cache, by a StoredWatcher each. In each interval of
// consistency checks, a cache is compared with the store, and starts over if they differ.
//
// # Invariants
//
//   - A cache publishes its state before the progress reaches the state's revision. A reader that waits for the
//     progress therefore finds all events up to it in the published state.
//   - Published trees, Entries and Snapshots are immutable, except for the encodings and fields that Entries gain.
//   - The ring holds all events after its floor. A Watcher either returns all events after its start, or fails.
//   - Encodings are kept for Entries in the tree and events in the ring only. When the last of both releases the owner,
//     its encodings are dropped; readers that still hold the Entry encode for themselves.
//   - The memory of encodings is bounded for all caches together, that of events for each collection.
//
// # Order of locks
//
//	Caches.mu > Cache.mu > budget.mu, labelSets.mu
//
// progress.mu is never held together with another lock. extending and deriving are taken before Cache.mu. No lock is
// held while an object is encoded, except by the reader's sync.Once of that one encoding, and none during a request to
// the store, except extending. None at all is held during a call of a conversion webhook.
//
// # Rejected
//
//   - One watch of the store per collection, as in kube-apiserver. One stream orders the events of all collections, so
//     that a single revision says how far all caches are.
//   - A goroutine and a buffered channel per watcher, as in kube-apiserver. An idle watcher then costs several KB, and
//     a slow one blocks the dispatch until a timeout.
//   - Decoded objects in the cache. They take a multiple of the memory, and every response encodes them again.
//   - Indexes of all selectable fields. The node of a pod is indexed, because kubelets select by it; of other fields, those
//     of existing watchers are evaluated, and only for new events.
//   - Garbage collection of encodings by age. The clock algorithm keeps what is used, within a fixed budget, and marks
//     an encoding as used without a lock.
package watchcache
