// Package owned reads and writes the objects that a cluster owns in the hosting cluster, for all steps of a
// reconciliation, and records their events.
//
// # Which object belongs to a cluster
//
// Objects handles objects in the namespace of the cluster, which an owner reference or an annotation ties to the
// cluster (desired.Owns). Labeled handles objects for which that is impossible: objects inside the cluster, and
// cluster-scoped objects of its host. Their labels have the name and the namespace of the cluster.
//
// # Invariants
//
//   - An object is changed only if the cluster owns it. An object with a name of the cluster's but another owner is
//     reported with ErrForeign and left unchanged.
//   - Writes happen only if the object differs. They keep labels, annotations and fields that the operator does not
//     set.
//   - Updates have the resource version of the object that was read, so that they fail with a conflict if the object
//     has changed since. Such errors, and those that ErrStale marks, repeat the reconciliation and are not reported
//     (Stale).
//   - A durable object of a cluster whose deletion needs a check gets an annotation instead of an owner reference
//     (Own), so that the garbage collector cannot delete it without the operator.
//
// # Stale caches
//
// Reads of most kinds come from a cache, which lags and contains only objects with the label of the operator. Find
// therefore asks the API server if the cache does not have an object: the object may have lost its labels. A write of
// an object that was changed or deleted since it was cached fails, and the next reconciliation reads it again. Create
// returns ErrStale if another operator has created the object since it was read. No decision about etcd members depends
// on a cache: pods and claims are always read from the API server.
package owned
