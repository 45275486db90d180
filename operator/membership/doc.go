// Package membership plans the membership of one embedded etcd: which members bootstrap it, join it and leave it,
// which pods and volume claims exist, and which pod restarts next. Plan is a pure function from an observation to
// exactly one action. The reconciler executes the action, observes again and plans again.
//
// # Data structures
//
//   - Observation: everything that Plan depends on: the configuration, the status (Intent), etcd's members, pods and
//     claims. The caller reads all of it before each plan.
//   - Intent: the part of the status that cannot be observed, such as the member that is joining.
//   - view: an Observation with sorted members, pods and claims, and lookups by name. It lives for one plan.
//   - step: a function from a view to an action, or to nothing.
//   - Action: one change of the cluster or of the status, or Wait with the reason. Action.Describe returns the text for
//     events and conditions; Apply predicts the observation after an action whose outcome is certain, so that the
//     caller may plan again without observing.
//
// # Steps
//
// Plan tries a fixed list of steps and returns the action of the first one that has something to do. Which list
// applies depends on the state of etcd:
//
//   - Not bootstrapped: choose the initial members, create all of their claims, then all of their pods, and record
//     Bootstrapped once they have formed a quorum.
//   - No replicas: delete all pods, nothing else. The cluster hibernates; members start again as after a lost quorum.
//   - Quorum lost: recreate pods of members whose claims exist, nothing else.
//   - Quorum: ensure a pod for each member, delete pods and claims of former members, scale the stateless servers,
//     restart unready outdated pods, advance the joining member, remove voters that have to be replaced, remove
//     surplus voters, start the next join, defragment a database, roll out a new pod template. While a database is
//     being defragmented, only the first three.
//   - External etcd: only the steps for stateless servers.
//
// # Life of a member
//
// A member joins in this order: StartJoin (the intent), AddLearner, CreateClaim, CreatePod, Promote, FinishJoin. It
// leaves in this order: MoveLeader if it leads, DeletePod if the quorum allows it, KeepClaim if it may have the only
// copy of acknowledged writes, RemoveMember, DeletePod, DeleteClaim or ReleaseClaim.
//
// In between, its pod may be replaced any number of times (CreatePod, DeletePod), always with the same claim. A member
// that cannot start from its claim, because the volume is lost or does not have the data that the member has voted
// with, leaves, and a member with a new name joins. Its database is defragmented in this order: MoveLeader if the
// member leads, StartDefragmentation, FinishDefragmentation.
//
// # Invariants
//
//   - At most one membership change is in progress. A learner other than Intent.JoiningMember is removed.
//   - No action loses the quorum: a voter is removed, and the pod of a healthy voter is deleted, only while the
//     remaining healthy voters are a quorum. The exceptions are the restart of a single voter and hibernation.
//   - At most one member is being defragmented, and etcd has a quorum without it. The exception is a single voter.
//   - New members are learners until they have caught up, so that a member that never starts does not change the
//     quorum.
//   - A voter whose claim is missing never restarts: without its log it could vote twice in one term.
//   - A member that has the only copy of acknowledged writes is neither replaced nor removed as surplus. The claim of a
//     voter that may have it is marked before the voter is removed, and never deleted.
//   - A member name is never reused, so that no member starts from the data of another. Intent.NextOrdinal only grows.
//   - The intent is written before the action that depends on it, with optimistic locking. Every step follows from the
//     observation, so the operator may crash between any two steps, and a second operator with an older observation
//     can at worst repeat an action, whose preconditions then fail.
//
// The simulated cluster in world_test.go checks these invariants: testdata contains scripts of common procedures;
// TestCrashAndStaleViewAtEveryStep and TestNoActionLosesTheQuorum check them at every step and under random failures.
//
// # What may block
//
// Nothing: the package does no I/O, reads no clock (Defragmentation.Now is an argument) and has no locks or goroutines.
// Plan and Apply do not change their arguments and may be called concurrently. A plan visits the members, pods and
// claims of one cluster a few times.
//
// # Rejected alternatives
//
//   - A StatefulSet restarts pods in the order of their ordinals and removes the highest ordinal first. It can neither
//     replace a member in the middle by one with a new name, nor restart the leader last, nor keep a member's claim
//     from being recreated empty under the same name, which is how etcd members lose acknowledged writes.
//   - A state machine with a persisted phase has to be repaired whenever the phase and the cluster disagree, for
//     example after a restore. The status of this operator stores only what cannot be observed.
//   - Adding voters directly is one step shorter, but an unreachable new voter raises the quorum: from one member to
//     two, it stops all writes.
//   - Planning several changes from one observation would need fewer reconciliations, but each change is only safe in
//     the membership that it was planned for.
package membership
