// Package members maintains the replicas of a cluster and the membership of its etcd. Observe and ReadMembers read
// their state; TakeActions executes the actions that membership.Plan decides on, on claims with package volumes. No
// other step creates or deletes the pods and claims of replicas, or changes members of etcd.
//
// # Life of one execution
//
//   - Observe lists pods and claims. ReadMembers adds the linearizable list of members with their status. Both run
//     early in a reconciliation, because most steps need the state.
//   - TakeActions reads everything again if the other steps have taken so long that the state is too old. It adds the
//     intent in the status, the recovery, the maintenance window, the defragmentation and the backup before an upgrade
//     to the input of membership.Plan.
//   - It then plans and executes one action after another. After an action whose outcome is certain, such as a created
//     object, it predicts the next state (Observation.Apply) and plans again. After any other action it ends, and the
//     next reconciliation observes the outcome.
//
// # Reads and writes
//
// The package reads pods and claims from the API server, and members from etcd. It writes pods and claims, and the
// fields membership, recovery, defragmentation and upgrade of the status. In etcd, it adds learners, promotes and
// removes members, moves the leadership, and starts defragmentations.
//
// # Invariants
//
//   - Plans are based on observations that are at most observationAge old, and every action begins at most
//     ActionDeadline after the observation. The leader lease lasts longer, so that an operator that was suspended and
//     has lost the lease executes no former plan.
//   - Intent is written to the status before it is acted upon, with an optimistic lock on the cluster. The lock also
//     stops an operator with an outdated view at the first action that needs an intent; the age of the observation
//     stops it at all others.
//   - A member is removed from etcd before its claim is deleted. A claim that may have the only copy of acknowledged
//     writes is marked before the member is removed, and then released instead of deleted.
//   - A pod is deleted with its UID as a precondition, and a claim also with its resource version, so that an outdated
//     plan deletes neither a successor nor a claim that was marked since.
//   - At most one change of the membership is executed per reconciliation. Package membership has the invariants of the
//     plan itself.
//
// # Order
//
// The certificates precede ReadMembers, which needs a client certificate. Restores, recoveries and rotations precede
// TakeActions: they decide whether members may start and which pods have to restart. API services follow it, because
// they need ready replicas. While the configuration is invalid or a Secret is lost, no action is taken at all.
//
// # Crashes
//
// Every step of a procedure follows from pods, claims, members and the intent. If the operator stops after the intent
// is stored and before the action, the next plan returns the same action. If it stops after the action, the next
// observation shows its effect. If the response of etcd is lost, the step ends, and in the next reconciliation the
// member list shows whether the change was made.
//
// # What may block, and requeues
//
// Reads of etcd take at most two seconds, or three after the loss of the quorum, and changes at most five. A
// defragmentation takes minutes and runs in a goroutine of etcd.Pool, which outlives the reconciliation; TakeActions
// only starts it and collects its result. After an action, the runner requests the next reconciliation immediately;
// while a plan waits, it repeats it frequently, except for a maintenance window, whose opening it waits for (package
// outcome).
package members
