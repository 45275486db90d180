// Package preparation has the functions that restores and recoveries share. Both run a pod that writes data into the
// volume of a member while the member does not run: the functions find and delete this pod, locate the backup that it
// reads, and explain its failure. Packages restore and recovery decide when such a pod runs and what follows from its
// result.
//
// # Life of a pod
//
// The pod has a fixed name (CLUSTER-restore or CLUSTER-recovery), so that at most one exists, and mounts the claim of
// the member with the member's name. It runs once and reports its result in the termination message
// (backups.ParseResult). An argument contains the identity of the request (desired.JobUID), so that the pod of a former
// request is recognized and deleted. A failed pod stays for RetryInterval, so that its message can be read, and is then
// deleted; the next reconciliation creates another one. The cluster owns the pod, but the pod does not have the label
// by which the replicas are listed: the list of pods in an observation does not contain it, and neither Service selects
// it.
//
// # Invariants
//
//   - Pods are read from the API server and not from a cache. A pod that is not found is known not to exist. A member
//     starts only after the pod has succeeded.
//   - Data is restored only if something shows that the backup was not replaced: a digest or a verification key that is
//     stored outside of the destination. Only the user can waive that, with verification: Skip, and every such restore
//     is reported (ReportUnverified).
//   - An image of an earlier release that does not know the verification flags fails instead of restoring without
//     verification.
//
// # Crashes
//
// The package stores nothing. A pod that was created before the operator stopped is found by its name, and its result
// stays in its termination message until the pod is deleted.
package preparation
