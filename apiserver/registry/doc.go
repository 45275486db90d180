// Package registry implements the verbs of every resource: Get, List, Watch, Create, Update, Patch, Delete and
// DeleteCollection. The same code serves built-in kinds, custom resources and their subresources; what differs
// between them is data in a resource.Definition. It takes the place of kube-apiserver's generic registry Store.
//
// # Path of a request
//
//	Get, List, Watch: snapshot of the watch cache > entries
//	Create:           managed fields > mutating admission > Reserve > strategy > validating admission > storage
//	Update, Patch:    state > Change > mutating admission > Reserve > strategy > validating admission > storage
//	Delete:           state > admission > strategy > mark or remove > storage
//
// Reads return encoded entries of the watch cache and decode nothing. They go to storage only for a revision that the
// cache no longer has, or when the cache lags behind a consistent read for too long.
//
// An update or a deletion is a value (update, deletion) whose attempts run in one loop, Registry.retry. The first
// attempt starts from the state in the watch cache and usually commits without having read etcd. A failed commit
// returns the current state, from which the next attempt starts.
//
// The server's own code (actions, admission plugins, controllers) uses a Client, which takes keys and internal
// versions in place of targets and HTTP bodies.
//
// # Invariants
//
//   - Every write commits by compare-and-swap on the revision of the state that it was computed and validated from.
//     Stale cached states can cost an attempt, never a lost update.
//   - A failure, or an outcome that writes nothing, is returned only if its attempt started from a fresh state.
//   - A write that fails after Reserve is followed by Rollback. Commit follows only an update or a deletion that storage
//     has taken, and releases what the replaced object held.
//   - A Change never modifies the object that it starts from.
//   - Response bytes of a write are made from the stored bytes, so that a later read returns the same.
//   - A cache is built from the definition in the current catalog, whichever definition the request was routed to. After
//     Release, no request can build one from the old definition.
//   - Initial and following events of a Watch have no gap and no overlap: the cursor starts at the revision of the
//     snapshot that the initial events come from.
//
// # Locks
//
// The package has none. Registry is immutable after start-up; update, deletion and listing belong to one request; a
// Watch and a follower belong to one goroutine.
//
// # Rejected alternatives
//
//   - Storage that calls back for each attempt, like GuaranteedUpdate: the loop would be below the code that knows when
//     an attempt from a stale state is worthless.
//   - Reading etcd before each write: costs a round trip that an uncontended write does not need.
//   - A type per resource, like kube-apiserver's storage providers: each would wire the same strategies into the same
//     verbs, and custom resources would still need a generic one.
//   - A loopback HTTP client for the server's own code: its requests would be encoded, authenticated, authorized and
//     decoded for nothing. Upstream's controllers and plugins, which require a client-go client, have one that calls the
//     handler directly.
package registry
