// Package storage stores bytes under paths in etcd. It takes the place of k8s.io/apiserver/pkg/storage/etcd3, and
// uses its key layout, transactions, leases and compaction, so that a kube-apiserver can use the same etcd.
//
// A path is relative to the store's prefix and has no leading slash: "pods/default/web-0". The path of a collection
// ends in a slash: "pods/", "pods/default/". A revision is etcd's: one counter for the whole etcd, not per path.
//
// # Data structures
//
//   - Store: all keys below one prefix of one etcd. A server has one Store for each etcd of
//     --etcd-servers-overrides, in addition to the default one. The revisions of different Stores are unrelated.
//   - Value: a stored value with its ModRevision and CreateRevision. Page: a part of a list at one revision.
//   - WatchStream: the changes below a prefix, in Batches of Events. One stream of the whole prefix feeds all watch
//     caches (package watchcache); History opens a stream of one collection whose Events have the replaced values.
//   - revisionReader: batches the reads of the current revision.
//   - leases: the lease that objects with the same TTL share.
//   - inFlight: the writes to which etcd has not responded, so that they can be repeated (handover.go), or ended if the
//     events show that they were applied (effects.go).
//   - SoftQuota: rejects writes before the database reaches etcd's quota.
//
// # Life of a write
//
// Create, Update and Delete encrypt the data and send one transaction whose condition is the expected ModRevision of
// the path; 0 means that the path must not exist. The else branch of an Update or Delete reads the path: a failed
// write returns a ConflictError with the current value, so that its caller can try again without another read. A
// Create that fails returns ErrExists. CreateGuarded has further conditions, the ModRevisions of other paths, and
// returns ErrGuard if one of them does not hold. The response has the revision of the write, and the WatchStreams
// deliver the event.
//
// If etcd does not respond, the outcome of the write is unknown, and the error is ErrUncertain. In a Store on the etcd
// member of this process, RepeatLostWrites sends such writes again after each change of the leader. A leader that
// transfers leadership drops the proposals that it receives. A proposal of a follower, or one that the leader received
// before it crashed, is lost without notice, and etcd waits for it for seven seconds. It is safe to repeat an Update or
// Delete whose earlier attempt may have succeeded: its condition, the ModRevision of the key, holds for at most one of
// the attempts. The condition of a creation, that the key does not exist, is satisfied again after a deletion: an
// attempt that the network has delayed would create the object a second time. Creations therefore also depend on the
// ModRevision of barrierKey, which is written each time before they are repeated; all replicas use the revision that
// the first of them writes. After that write, etcd applies no earlier attempt. The server then reads the events up to
// that write to find out whether an earlier attempt was applied. Neither a response nor the current state shows that:
// etcd sends no response to a creation that reaches the member in a snapshot, and the object may have been deleted
// since. A creation that was applied succeeds and is not repeated. If the events have been compacted, the outcome of
// the creation stays unknown.
//
// # Life of a read
//
// A consistent read from the watch cache calls Revision, waits until the cache has reached it, and reads nothing else
// from etcd. Get, List, ListKeys and Count read etcd directly. They serve writes whose cached state is stale,
// revisions that the cache no longer has, reads while the cache lags, and the cache itself.
//
// # Encryption
//
// Values are encrypted just before they are sent to etcd, and decrypted by the methods that return them. Events of a
// WatchStream are the exception: their receiver calls Decrypt, only for collections that are cached, and without
// delaying other collections when a KMS plugin is slow.
//
// # Compaction
//
// All servers of an etcd, including kube-apiservers, share the compaction key compact_rev_key. In each interval, the
// server whose transaction on this key succeeds compacts (RunCompaction). FollowCompaction watches the key, so that all
// servers stop serving compacted revisions from memory at about the same time.
//
// # Invariants
//
//   - Data of a Value or Event is immutable from the moment it is read.
//   - The revision that Revision returns is not less than the revision of any write that completed before the call.
//     A caller therefore must not join a read that is already in flight.
//   - A Batch never ends in the middle of a revision, and the Batches of a stream arrive in the order of their
//     revisions. After a Batch with revision R, every event up to R has been delivered.
//   - Each WatchStream is the only watch on its gRPC stream, so that it cannot receive a progress notification of
//     another watch.
//   - At most one attempt of a write has an effect.
//   - The revisions of the last compaction interval are kept, so that continue tokens and watches from that time
//     can be served; while the soft quota is exceeded, only the revisions of the last 15 seconds are certain to be
//     kept.
//
// # Errors
//
// classify wraps errors of etcd in the corresponding errors of this package, and returns other errors unchanged, such
// as errors of the caller's context. classifyWrite adds ErrUncertain for a write that may have been applied or may be
// applied later. Errors of encryption are TransformErrors.
//
// # Locks and blocking
//
// revisionReader, leases, inFlight and WatchStream each have a mutex that guards only their own fields. No function
// holds two of these mutexes. Only leases calls etcd while it holds its mutex, because concurrent writes with a TTL
// need the same lease.
//
// All methods may be called from any goroutine that may wait for etcd; only Next of a WatchStream must not be called
// concurrently. Methods with a context return when the context ends, except while a lease is being granted for
// another caller, and on a shim while CreateGuarded undoes a creation. Key, SupportsProgress, Protection,
// WatchStream.Close, and Decrypt of values that no KMS plugin has encrypted do not wait. RunCompaction,
// FollowCompaction, RepeatLostWrites and PollSpace block until their context ends, and CheckFeatures until all members
// have responded; the caller runs each in a separate goroutine.
//
// # Rejected alternatives
//
//   - Codecs inside of the storage layer, like etcd3.store: GuaranteedUpdate decodes and encodes in a callback.
//     Here the storage layer knows bytes only; the retry loop is in package registry, which has the decoded object.
//   - A watch per resource, like the Cacher: each costs a stream, a goroutine and, for consistent reads, a progress
//     request. With one watch of the prefix, one progress request serves all caches.
//   - A read per consistent request: under load the reads queue in etcd, although one later read would answer all
//     callers that are waiting.
//   - A lease per object: granting a lease is a consensus round, which is more expensive than the write.
package storage
