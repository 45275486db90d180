// Package storage stores bytes under paths in etcd. It uses kube-apiserver's key layout and transactions, so that
// servers of both kinds can share an etcd.
//
// A path is relative to the store's prefix and has no leading slash: "pods/default/web-0". The path of a collection
// ends in a slash: "pods/", "pods/default/". A revision is etcd's: one counter for the whole etcd, not per path.
//
// # Path of a request
//
// A write (Create, Update, Delete) is one etcd transaction with the expected ModRevision as its condition; 0 means
// that the path must not exist. The else branch of the transaction reads the path. A failed write therefore returns a
// ConflictError with the current value, and its caller can try again without another read.
//
// A consistent read from the watch cache calls Revision, waits until the cache has reached it, and reads nothing else
// from etcd. Get, List and Count read etcd directly; they serve writes with a stale cached state, revisions that the
// cache no longer has, and reads while the cache lags.
//
// Changes arrive through one WatchStream for the whole prefix, which feeds all watch caches (package watchcache).
//
// A server has one Store, and one set of watch caches, for each etcd of --etcd-servers-overrides. Their revisions are
// independent.
//
// # Encryption
//
// Values are encrypted just before they are sent to etcd, and decrypted by the methods that return them. Events of a
// WatchStream are the exception: their receiver calls Decrypt, for collections that are cached, and without delaying
// other collections when a KMS plugin is slow.
//
// # Invariants
//
//   - Data of a Value or Event is immutable from the moment it is read.
//   - The revision that Revision returns is not below that of any write that completed before the call. A caller must
//     not join a read that is already in flight.
//   - A Batch never ends in the middle of a revision, and batches of a stream arrive in the order of their revisions.
//     After a batch with revision R, every event up to R has been delivered.
//   - Each WatchStream is the only watch on its gRPC stream, so that a progress notification cannot be that of another
//     watch.
//   - Errors of etcd are wrapped in exactly one of this package's errors, in classify. After ErrUnavailable a write may
//     have been applied.
//   - The revisions of the last compaction interval are kept. A continue token or a watch from that time can be served.
//
// # Locks
//
// revisionReader, leases, SoftQuota and WatchStream each guard only their own fields. No function holds two of their
// locks, and only leases calls etcd under its lock: concurrent writes with a TTL need the same lease.
//
// # Rejected alternatives
//
//   - Codecs inside of the storage layer, like etcd3.store: GuaranteedUpdate decodes and encodes in a callback. Here
//     storage knows bytes only; the retry loop is in package registry, which has the decoded object.
//   - A watch per resource, like the Cacher: each costs a stream, a goroutine and, for consistent reads, a progress
//     request. One watch of the prefix also makes progress requests cover all caches.
//   - A read per consistent request: under load the reads queue in etcd, although the answer to the next one serves all
//     callers that are waiting.
//   - The lease per object of clientv3.Grant: granting a lease is a consensus round, more expensive than the write.
package storage
