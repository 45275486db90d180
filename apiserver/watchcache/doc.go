// Package watchcache keeps the collections of a store in memory and serves lists, gets and watches from them. It
// takes the place of kube-apiserver's Cacher and watchCache (k8s.io/apiserver/pkg/storage/cacher). An object is held
// as its stored bytes, decrypted, plus the encodings that responses needed, which all readers and watchers share.
//
// # Data structures
//
//   - Caches: the caches of one store. Caches.Run reads one watch stream for all of them. progress has the revision
//     that the stream has reached, and the readers that wait for a later one.
//   - Cache: one collection. Its B-tree (tree) maps paths to Entries; index sorts the same Entries by one
//     selectable field; ring has the latest events; watchers has the Watchers, grouped by Scope.
//   - Entry: one object at one revision. Its encodings are added on demand and evicted by the budget of the Caches.
//   - Snapshot: a copy-on-write clone of tree and index, with the range of revisions at which the collection had
//     this state.
//   - Watcher: a cursor into the ring. It has no goroutine and no copies of events.
//   - StoredWatcher: a watch of the store that bypasses the cache, for collections that must not be cached.
//
// # Life of a request
//
// A consistent read calls Cache.Latest, which asks the store for its current revision. A read with a resourceVersion
// calls Cache.Snapshot. Both wait until the watch stream has reached the revision, and return a Snapshot, which is
// read without locks. Cache.Exact returns the state at an earlier revision: it is the current or a retained Snapshot,
// or derived from the current one by undoing the later events of the ring.
//
// A watch is a Watcher. An event is added to the ring once, and wakes only the Watchers whose Scope (namespace, name,
// value of a selectable field) the object matches before or after the event. A Watcher that starts before the first
// event of the ring adds the missing events from etcd's history to the ring. A Watcher that falls behind the ring
// expires; it never delays the stream or other Watchers.
//
// A write goes to the store, not to the cache; the event of the write updates the cache. With Cache.Offer, the writer
// passes on the encoding that its response needed, so that the event is not encoded again.
//
// # Life of an event
//
// Caches.apply receives it in a batch of the stream and decrypts it, without a lock. Cache.apply takes the write lock
// of the collection's cache, replaces the Entry in tree and index, pushes a record onto the ring, and signals the
// Watchers. After the last event of the batch, publish stores a new clone of tree and index. When all caches have
// published, the progress advances and releases the readers that wait for the revision. Watcher.Next then returns the
// event; Event.Encoded encodes it for the first client of each format, and returns the same bytes to the others. The
// record leaves the ring when the ring exceeds its limits. When neither tree nor ring holds an Entry any more, its
// encodings are dropped.
//
// # Life of a collection
//
// A cache is idle until its first use. While it is loading, it buffers events and fetch lists the collection; install
// then applies the buffered events, and the cache is ready. If the watch stream loses events, for instance because
// etcd has compacted them, the cache is loading again, and install dispatches the differences to its Watchers. If the
// store returns to an earlier revision, because a backup was restored, the cache drops its contents and expires its
// Watchers. Each consistency check compares the cache with the store; a cache that differs starts over in the same
// way. Caches.Drop removes a cache permanently when the definition of its resource has changed or is gone.
//
// # Conversion webhooks
//
// An object of a CRD with a conversion webhook is converted when it is first read in a version, by Convert: in
// batches, in a goroutine that outlives the reader, and once for all concurrent readers. The converted item is kept
// like an encoding, and all formats of the version are derived from it. The labels and selectable fields of the
// converted object are kept with the Entry. docs/howto/follow-a-conversion.md names all functions from a request to the
// webhook.
//
// # Invariants
//
//   - A cache publishes its state before the progress reaches the revision of that state. A reader that waits for
//     the progress therefore finds all events up to it in the published state.
//   - A published tree and index are immutable. An Entry is immutable, except for the encodings and selectable
//     fields that are added to it.
//   - The ring holds all events after its floor. A Watcher returns all events after its start, or it fails. After
//     the watch stream has lost events, it returns instead the differences to the state read afterwards.
//   - Encodings are added only to an Entry or record that is not retired. It is retired when the last of tree and
//     ring releases it; a detached Entry is retired from the start. A reader of a retired Entry encodes for itself.
//   - The encodings of all caches together take at most Options.EncodingBudget. The events of one collection take
//     at most Options.RingBytes, or more from the time that a Watcher adds history until the next event or sweep.
//
// # Locks
//
// The order is
//
//	Caches.mu > Cache.mu > budget.mu, labelSets.mu
//
// progress.mu and calls.mu are never held together with another lock. Cache.extending and Cache.deriving are taken
// before Cache.mu. extending alone is held during a request to the store. Under the write lock of Cache.mu, the
// labels of new objects are extracted, and the selectable fields that the Scope of a Watcher names. An object is
// encoded outside of all these locks, in the sync.Once of its encoding, for which other readers of the same encoding
// wait. No lock is held during a call of a conversion webhook or a KMS plugin, except extending.
//
// # What may block
//
// Cache.Snapshot, Latest and Exact wait at most 3 seconds (freshWait) for the watch stream to reach a revision, and
// without limit until the collection is first read; Latest also waits for a response of the store. Watcher.Next and
// StoredWatcher.Next wait for events. Entry.Encoded, Event.Encoded and Convert wait for another reader's encoding or
// for a conversion webhook. All of them may be called from any goroutine that may wait; one Watcher must not be used
// by two calls of Next at the same time. Watch, Offer, At, Retain, Compacted, VerifyDecryption and the methods of
// Snapshot do not wait for the store. The goroutine of Run never waits for a reader; it waits at most decryptionWait
// for a KMS plugin.
//
// # Cost
//
// An event costs O(log n) for n objects, plus one step per Watcher of the whole collection, per distinct shape of the
// other Scopes, and per Watcher whose Scope the event matches. A published state costs the copies of the tree nodes
// that the next batch changes. A Snapshot costs one allocation. Exact costs O(e log n) for e events since the
// revision.
//
// # Rejected alternatives
//
//   - One watch of etcd per collection, as in kube-apiserver. One stream orders the events of all collections, so
//     that a single revision says how current all caches are.
//   - A goroutine and a buffered channel per watcher, as in kube-apiserver (cacheWatcher). An idle watcher then
//     costs several KB, and a slow one blocks the dispatch until a timeout.
//   - Decoded objects in the cache. They take a multiple of the memory, and every response encodes them again.
//   - Indexes of all selectable fields. The nodes of pods and ResourceSlices are indexed, because kubelets select
//     by them. Of other fields, only those named in Scopes of Watchers are extracted, and only from new events.
//   - Eviction of encodings by age. The clock algorithm keeps the encodings that are used, within a fixed budget,
//     and marks an encoding as used without a lock.
package watchcache
