// Package deletion deletes a cluster: it decides whether a requested deletion waits, takes the final backup, and
// deletes the objects of the cluster except for those that package retention keeps.
//
// # Life of a deletion
//
//   - EnsureFinalizer adds the finalizer before the cluster gets its first object.
//   - Once the deletion is requested, Await decides in each reconciliation whether it waits: because the cluster is
//     protected, or for its final backup. While it waits, the cluster keeps running and being reconciled. Hold reports
//     the reason.
//   - Otherwise, Remove records the start of the deletion, and deletes the objects. It may need several
//     reconciliations.
//   - When no object is left that is not terminating, the finalizer is removed, and the cluster disappears.
//
// # Reads and writes
//
// The package reads the cluster, its final backup and all of its objects from the API server, and nothing from its
// replicas or etcd, so that a cluster that does not work can be deleted. It writes status.deletion, the condition
// Deleting, the finalizers of the cluster, and the final ApiServerBackup (FinalBackupName). It deletes all objects that
// the cluster owns, and in mode Extension its objects in the host.
//
// # Invariants
//
//   - The start of the deletion is recorded before the first object is deleted. From then on nothing stops it, not even
//     a change of spec.deletion: a cluster without some of its objects cannot run.
//   - Data is marked as retained before anything is deleted that could take it along.
//   - APIServices are gone before the servers behind them.
//   - Only objects that the cluster owns are deleted (desired.Owns). The finalizer is removed last.
//   - The final backup begins after the request to delete the cluster: an older backup with its name does not count,
//     because it may lack the last writes.
//
// # Order
//
// A cluster that is being deleted does not run the other steps once its deletion has started. The order of reads and
// writes matters, so the steps write objects themselves instead of returning them.
//
// # Crashes
//
// Each reconciliation repeats Remove from the beginning: recording the start, returning and retaining objects and
// deleting objects that still exist are idempotent. If the operator stops between the deletion of the last object and
// the removal of the finalizer, the next reconciliation finds nothing to delete and removes it.
//
// # What may block, and requeues
//
// Nothing but requests to the hosting cluster. Remove does not wait for terminating objects, except for APIServices: a
// pod on a failed node may terminate indefinitely. A final backup is not watched, so that a cluster that waits for it
// is reconciled every two seconds; a protected cluster is reconciled as usual.
package deletion
