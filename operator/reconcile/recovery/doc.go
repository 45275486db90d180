// Package recovery continues with the data of one member, or with a backup, after the quorum of etcd was lost
// permanently and the user has requested a recovery in spec.recovery.
//
// # Life of a recovery
//
//   - Observation translates the request and its progress into the input of membership.Plan, which decides on the
//     actions. Package members executes them, and Write stores the stage in the status: Stopping while the pods stop,
//     then Restoring.
//   - Recover prepares the data in a pod while the stage is Restoring, and stores the stage Starting once the pod has
//     succeeded. Only then does membership.Plan let the member start. Package members completes the recovery when etcd
//     has a quorum again.
//   - Claims of the other members are deleted after that, as claims of former members, except for claims that may have
//     the only copy of acknowledged writes.
//
// # Reads and writes
//
// The package reads spec.recovery, the survivors in the observation, the pod CLUSTER-recovery and, for a recovery from
// a backup, the ApiServerBackup and its Secrets. It writes status.recovery, status.membership (the recovered member
// becomes the only initial member of an etcd that is not bootstrapped), the member IDs and acknowledged states in
// status.members, and the pod.
//
// # Invariants
//
//   - The operator never begins a recovery by itself, because a recovery may lose acknowledged writes. A request that
//     was made while etcd has a quorum is recorded as not needed, so that it does not take effect later.
//   - All pods have stopped before data is prepared: members that still run could regain the old quorum, and two
//     clusters would acknowledge writes.
//   - A member must not start while the pod may still write into its volume. So Recover does not return objects to be
//     applied, but reads its pod from the API server, creates and deletes it itself.
//   - The recovered member gets a new member ID and a new log, so that a former member that returns cannot vote with
//     it.
//   - A request is executed once: it is identified by its requestID, which the status copies.
//
// # Order
//
// Recover precedes the membership actions of the same reconciliation, which need to know whether its pod exists.
//
// # Crashes
//
// Each stage is stored before anything acts on it. In Stopping, the deletion of pods is repeated until none is left;
// the data is untouched, so that the user can still replace the request by another one. In Restoring, the pod is found
// again by its name, and its identity contains the requestID. If the operator stops after the pod has succeeded, its
// result is read again. In Starting, the member starts like a single initial member, as often as necessary.
//
// # What may block, and requeues
//
// Nothing but requests to the hosting cluster: the pod does the work, and is watched. The stages are observed by the
// frequent reconciliations of a progressing cluster.
package recovery
