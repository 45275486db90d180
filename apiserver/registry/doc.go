// Package registry implements the verbs of every resource: Get, List, Watch, Create, Update, Patch, Delete and
// DeleteCollection. The same code serves built-in kinds, custom resources and their subresources; a resource.Definition
// has the data in which they differ. The package takes the place of kube-apiserver's generic registry Store
// (k8s.io/apiserver/pkg/registry/generic/registry) and of the loop in etcd3's GuaranteedUpdate.
//
// # Data structures
//
//   - resource.Target: the argument of every verb: a Definition in one version, an endpoint, a namespace and a name.
//     The request keeps its Definition when a new catalog is published; only caches are looked up in the current
//     catalog.
//   - Registry: the dependencies that all requests share. Storage: one etcd with its watch caches and its soft quota.
//     Overrides selects the Storage of a resource (--etcd-servers-overrides), Uncached the resources without a cache.
//   - state: the stored object that an attempt of a write starts from: bytes, revision, and whether the bytes were read
//     from etcd for this request (fresh) or from the watch cache.
//   - update, deletion: one write with the fields of its latest attempt (interface writer).
//   - Result: the outcome of a write, its object, and the bytes that storage now has.
//   - listing, List: one list call and its page of entries. Watch: a cursor into the events of a collection.
//
// # Life of a request
//
//	Get, List, Watch: snapshot of the watch cache > entries
//	Create:           managed fields > mutating admission > Reserve > strategy > validating admission > storage
//	Update, Patch:    state > change.Change > mutating admission > Reserve > strategy > validating admission > storage
//	Delete:           state > admission > strategy > mark or remove > storage
//
// Reads return encoded entries of the watch cache and decode nothing. The next section lists the reads of storage.
//
// Package change computes the object to store: replacements, patches, server-side apply and managed fields. Package
// selection decides which objects a list or watch has, and calls conversion webhooks for that.
//
// An update or a deletion is a value (update, deletion) whose attempts run in one loop, Registry.retry. The first
// attempt starts from the state in the watch cache and usually commits without having read etcd. A failed commit
// returns the current state, from which the next attempt starts.
//
// The server's own code (actions, admission plugins, controllers) uses registry/client, which takes keys and internal
// versions in place of targets and HTTP bodies.
//
// # Life of an object
//
// Create stores the object on the condition that its path is free, its namespace is active, and the definition of a
// custom resource permits new objects (see Registry.create). The watch stream delivers the event to the cache,
// from which all reads are served; Offer passes the encoding of the response on, so that the event is not encoded
// again. An update replaces the bytes on the condition that their revision is unchanged, or writes nothing if the bytes
// are equal.
//
// A deletion removes an object that has neither finalizers nor a grace period. Any other object is marked: its deletion
// timestamp is stored, and it lives on until an update removes its last finalizer (update.finishDeletion) or a deletion
// with a grace period of zero follows. The deletion of a namespace is completed by its controller, which removes the
// finalizers in its spec (resource.Terminator). Objects with a TTL disappear when their lease in etcd expires; the
// cache sees a deletion.
//
// # Watch cache or storage
//
// Lists and watches have two implementations each. The one on the watch cache (listing.page, watchcache.Watcher) serves
// almost all requests: its objects, encodings and events are shared. The one on storage (listing.stored,
// watchcache.StoredWatcher) has objects of its own for each request, and its lists a memory budget. It serves the
// requests that the cache cannot serve:
//
//	list of a resource that is not cached (Uncached)                    storage
//	list of a custom resource that is not served, by the server itself  storage
//	list at an exact revision, or with a continue token                 cache if it can derive the revision, else storage
//	page without selectors while the cache is being initialized         storage
//	consistent list while a value in etcd cannot be read                storage
//	consistent list while the cache lags for more than 3 seconds        storage
//	any other list                                                      cache
//	watch of a resource that is not cached                              storage: a list, then a StoredWatcher
//	any other watch                                                     cache: a snapshot, then a Watcher
//
// listing.start, listing.at and watchOnce decide. A GET follows the rules of lists, with getStored. Requests for a
// cache that is being initialized wait up to initializationWait, then fail with code 429. A watch that requests initial
// events while the cache lags fails with "Too large resource version"; with an etcd too old for progress notifications
// its initial events are listed from storage instead, and a Watcher follows.
//
// # Invariants
//
//   - Every write commits by compare-and-swap on the revision of the state that it was computed and validated from.
//     Stale cached states can cost an attempt, never a lost update.
//   - A failure, or an outcome that writes nothing, is returned only if its attempt started from a fresh state.
//   - A write that fails after Reserve is followed by Rollback, unless its outcome is unknown (storage.ErrUncertain).
//     Commit follows only an update or a deletion that storage has taken, and releases the reservations of the old
//     object that the new object does not use.
//   - Response bytes of a write are made from the stored bytes, so that a later read returns the same.
//   - A cache is built from the definition in the current catalog, whichever definition the request was routed to.
//     After Release, no request can build one from the old definition.
//   - Initial and following events of a Watch have no gap and no overlap: the cursor starts at the revision of the
//     snapshot that the initial events come from.
//
// # Locks
//
// The package has none. Registry is immutable; update, deletion and listing belong to one request; a Watch belongs to
// one goroutine.
//
// # What may block
//
// All verbs may be called concurrently from any goroutine that may wait. They return when their context ends, apart
// from the waits that the documentation of packages watchcache and storage names. Reads wait for the watch cache, reads
// from storage for etcd, and lists from storage also for their share of Registry.listBytes. Writes wait for admission
// webhooks, conversion webhooks, KMS plugins and etcd. The number of attempts of a write is not limited: under
// contention it ends with its context at the latest. Watch.Next waits for events. DeleteCollection deletes in
// goroutines of its own, which have ended when it returns. Target, Size, Cache, Release, Offer and Watch.Close do not
// wait for etcd, webhooks or other requests.
//
// # Rejected alternatives
//
//   - Storage that calls back for each attempt, like GuaranteedUpdate: the loop would be below the code that knows when
//     an attempt from a stale state is worthless.
//   - Reading etcd before each write: costs a round trip that an uncontended write does not need.
//   - A type per resource, like kube-apiserver's storage providers: each would wire the same strategies into the same
//     verbs, and custom resources would still need a generic one.
//   - A loopback HTTP client for the server's own code: its requests would be encoded, authenticated, authorized and
//     decoded for nothing. Upstream's controllers and plugins, which require a client-go client, have one that calls
//     the handler directly.
package registry
