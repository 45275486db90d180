package members

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/recovery"
	"quorate.dev/operator/reconcile/upgrade"
	"quorate.dev/operator/reconcile/volumes"
	"quorate.dev/operator/schedule"
)

// maxActions limits the number of actions per reconciliation, and so its duration. A cluster with more replicas is
// continued by the next reconciliation, which follows immediately.
const maxActions = 16

// Plans are based on observations that are at most observationAge old when the first action is planned, and every
// action begins at most ActionDeadline after the observation. The leader lease lasts longer: an operator that was
// suspended or partitioned and has lost the lease executes no former plan.
const (
	observationAge = 2 * time.Second
	ActionDeadline = 5 * time.Second
)

// Steps plans and executes the actions on the pods, claims and members of a cluster.
type Steps struct {
	Objects owned.Objects
	Pool    *etcd.Pool
	Clock   clock.Clock
	Image   string // the operator's own image
}

// Input is what TakeActions depends on.
type Input struct {
	Observation
	Credentials       credentials.Set
	Configuration     desired.Configuration
	Restart           map[string]bool // pods that have to restart to use new credentials
	Replacing         bool            // credentials are being replaced, so that defragmentations wait
	RecoveryPodAbsent bool            // no pod is known to prepare the data of a recovery
	Now               time.Time
}

// Result is the result of TakeActions. It is also valid if TakeActions returns an error.
type Result struct {
	Observation                   // the last one; its state may be nil after an error
	Action      membership.Action // last planned action; without a kind if none was planned
	Held        string            // why a rollout waits for a maintenance window; "" in one
	Rejected    error             // etcd's error for the action, which is retried
	UpgradeErr  error             // why it is not known whether a backup is needed before an upgrade
	Updated     *int              // number of pods that were created from the present spec; nil: unknown
	// Defragmented has an entry for each defragmentation that has ended: whether it was successful.
	Defragmented []bool
	Due          time.Time // when the maintenance window opens; zero: it is open, or none will ever open
}

// executor executes actions.
type executor struct {
	owned.Objects
	Pool  *etcd.Pool
	Clock clock.Clock
	Input
	image       string // the operator's own image
	cluster     *v1alpha1.ApiServerCluster
	formerImage string // image of pods that are created while an upgrade is held; "": the next image
	result      Result
}

// newExecutor returns an executor for the cluster of the observed state.
func (s Steps) newExecutor(in Input) *executor {
	return &executor{
		Objects: s.Objects, Pool: s.Pool, Clock: s.Clock, Input: in, image: s.Image, cluster: in.State.Cluster,
	}
}

// TakeActions plans and executes actions until the outcome of one is uncertain, so that the state has to be read again,
// or until there is nothing left to do.
func (s Steps) TakeActions(ctx context.Context, in Input) (Result, error) {
	x := s.newExecutor(in)
	err := x.takeActions(ctx)
	x.result.Observation = x.Observation
	return x.result, err
}

// age returns the age of the observation by the wall clock, which advances while the machine is suspended. Round
// removes the monotonic clock, which does not.
func (x *executor) age() time.Duration {
	return x.Clock.Now().Round(0).Sub(x.At.Round(0))
}

// refresh reads the state again if other steps have taken so long that it is too old. The client of the members is kept
// if the pods cannot be read, so that the result still has it. The age counts from the beginning of the observation,
// which is the conservative choice.
func (x *executor) refresh(ctx context.Context) (err error) {
	if x.age() <= observationAge {
		return nil
	}
	former, image := x.Members, x.State.Image
	x.Observation, err = Observe(ctx, x.Objects, x.cluster, image, x.Clock.Now(), x.Now)
	x.Members = former
	if err != nil {
		return err
	}
	x.Observation, err = ReadMembers(ctx, x.Pool, x.Observation, x.Credentials, x.Now)
	return err
}

// takeActions is TakeActions without its result.
//
// Without knowledge about a backup before an upgrade, the upgrade is held, but all other actions continue: a cluster
// whose backups cannot be read must still replace its members. A negative age means that the clock was set back;
// nothing is known about the real age then. If a plan only waits after an action, the status keeps the action, which is
// more useful than the reason for waiting.
func (x *executor) takeActions(ctx context.Context) error {
	if err := x.refresh(ctx); err != nil {
		return err
	}
	o, certain := observation(x.State, x.Configuration, x.Restart, x.Now), true
	x.result.Updated = countUpdated(o.Pods)
	o.Recovery, o.RolloutHeld = recovery.Observation(x.State, x.RecoveryPodAbsent), x.holdRollout()
	o.Defragmentation = x.defragmentation()
	if o.Intent.Bootstrapped && o.Replicas > 0 {
		held, err := x.holdUpgrade(ctx, o)
		if err != nil {
			held = "Waiting until it is known whether a backup is needed before the upgrade"
			x.result.UpgradeErr = err
		}
		o.UpgradeHeld, o.Defragmentation.Held = held, cmp.Or(o.Defragmentation.Held, held)
	}
	for n := 0; certain && n < maxActions; n++ {
		a := membership.Plan(o)
		if a.Kind == membership.Wait && x.result.Action.Kind != "" {
			return nil // the status reports the previous action
		}
		x.result.Action = a
		if a.Kind == membership.Wait {
			return nil
		}
		if age := x.age(); age > ActionDeadline || age < 0 {
			return fmt.Errorf("%s %s: %w: it is %s old", a.Kind, a.Name, owned.ErrStale, age)
		}
		if err := x.execute(ctx, a); err != nil {
			return x.actionFailed(ctx, a, err)
		}
		x.reportAction(ctx, a)
		o, certain = o.Apply(a)
	}
	return nil
}

// holdRollout returns why healthy pods are not restarted now, or "". Outside of maintenance windows, members that
// failed are still replaced, and pods that are not ready are still restarted: only the rollout to healthy pods waits.
func (x *executor) holdRollout() string {
	windows, err := desired.Windows(x.cluster)
	if err != nil {
		return "" // the spec is invalid, so nothing changes
	}
	opening := schedule.Opening(windows, x.Now)
	switch {
	case opening.IsZero():
		x.result.Held = "Waiting for a maintenance window; none will ever open"
	case opening.After(x.Now):
		x.result.Held = "Waiting for the maintenance window at " + opening.UTC().Format(time.RFC3339) +
			" to restart healthy replicas"
		x.result.Due = opening
	}
	return x.result.Held
}

// actionFailed returns the error of an action, except for a change that etcd rejected: it is retried. Such a rejection
// is normal, for example while a learner catches up, so that it is part of the status and not an error. Conflicts are
// returned: the runner repeats the reconciliation.
func (x *executor) actionFailed(ctx context.Context, a membership.Action, err error) error {
	if !errors.Is(err, errRejected) {
		return fmt.Errorf("%s %s: %w", a.Kind, a.Name, err)
	}
	x.result.Rejected = err
	ctrl.LoggerFrom(ctx).V(1).Info("Change of the members was rejected by etcd",
		"action", a.Kind, "name", a.Name, "reason", err.Error())
	return nil
}

func (x *executor) reportAction(ctx context.Context, a membership.Action) {
	ctrl.LoggerFrom(ctx).Info(a.Describe(), "action", a.Kind)
	e := owned.Event{
		Related: relatedObject(x.cluster, a), Reason: eventReasons[a.Kind], Action: string(a.Kind), Message: a.Describe(),
	}
	switch {
	case a.Kind == membership.ReleaseClaim:
		return // volumes.Release has reported it
	case a.Kind == membership.KeepClaim:
		e.Warning = true
	case a.Kind == membership.FinishDefragmentation && a.Reason != "":
		e.Warning, e.Reason = true, v1alpha1.ReasonDefragmentationFailed
	}
	x.Event(x.cluster, e)
}

// relatedObject returns a reference to the Pod or PersistentVolumeClaim that an action changes, for the event about the
// action, or nil if the action has no name. Without the reference, the recorder would merge the events of several
// replicas into one.
func relatedObject(cluster *v1alpha1.ApiServerCluster, a membership.Action) *corev1.ObjectReference {
	if a.Name == "" {
		return nil
	}
	kind := "Pod"
	switch a.Kind {
	case membership.CreateClaim, membership.DeleteClaim, membership.KeepClaim, membership.ReleaseClaim:
		kind = "PersistentVolumeClaim"
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: kind, Namespace: cluster.Namespace, Name: a.Name}
}

// eventReasons are the reasons of the events that actions cause. Actions on pods and claims have the same reasons as in
// the StatefulSet controller.
var eventReasons = map[membership.Kind]string{
	membership.Bootstrap:       v1alpha1.ReasonBootstrappingEtcd,
	membership.Bootstrapped:    v1alpha1.ReasonEtcdBootstrapped,
	membership.StartRecovery:   v1alpha1.ReasonRecoveringEtcd,
	membership.RestoreQuorum:   v1alpha1.ReasonRestoringQuorum,
	membership.DeclineRecovery: v1alpha1.ReasonRecoveryNotNeeded,
	membership.StartJoin:       v1alpha1.ReasonMemberJoining,
	membership.FinishJoin:      v1alpha1.ReasonMemberJoinFinished,
	membership.AddLearner:      v1alpha1.ReasonLearnerAdded,
	membership.Promote:         v1alpha1.ReasonLearnerPromoted,

	membership.StartDefragmentation:  v1alpha1.ReasonDefragmentingMember,
	membership.ResumeDefragmentation: v1alpha1.ReasonDefragmentingMember,
	membership.FinishDefragmentation: v1alpha1.ReasonMemberDefragmented,

	membership.MoveLeader:   v1alpha1.ReasonLeaderMoved,
	membership.RemoveMember: v1alpha1.ReasonMemberRemoved,
	membership.CreateClaim:  v1alpha1.ReasonSuccessfulCreate,
	membership.DeleteClaim:  v1alpha1.ReasonSuccessfulDelete,
	membership.KeepClaim:    v1alpha1.ReasonVolumeNotCompared,
	membership.ReleaseClaim: v1alpha1.ReasonVolumeRetained,
	membership.CreatePod:    v1alpha1.ReasonSuccessfulCreate,
	membership.CreateServer: v1alpha1.ReasonSuccessfulCreate,
	membership.DeletePod:    v1alpha1.ReasonSuccessfulDelete,
}

// errRejected wraps errors of changes that etcd may accept later, for example because a member has not been connected
// for long enough, a learner has not caught up, or the leader has just changed.
var errRejected = errors.New("rejected by etcd")

func (x *executor) execute(ctx context.Context, a membership.Action) error {
	switch a.Kind {
	case membership.Bootstrap, membership.Bootstrapped, membership.StartJoin, membership.FinishJoin:
		return x.writeIntent(ctx, a)
	case membership.StartRecovery, membership.RestoreQuorum, membership.DeclineRecovery:
		return recovery.Write(ctx, x.Objects, x.State, a, x.Now)
	case membership.StartDefragmentation, membership.ResumeDefragmentation, membership.FinishDefragmentation:
		return x.writeDefragmentation(ctx, a)
	case membership.CreateClaim:
		return x.Create(ctx, x.cluster, desired.Claim(x.cluster, a.Name))
	case membership.CreatePod, membership.CreateServer:
		return x.createPod(ctx, a)
	case membership.DeletePod:
		return x.deletePod(ctx, a.Name)
	case membership.DeleteClaim:
		return volumes.Delete(ctx, x.Objects, x.State, a.Name)
	case membership.KeepClaim:
		return volumes.Keep(ctx, x.Objects, x.State, a.Name, a.Reason)
	case membership.ReleaseClaim:
		return volumes.Release(ctx, x.Objects, x.State, a.Name)
	}
	return x.changeMembers(ctx, a)
}

// changeMembers sends one change to the leader of etcd. Each error counts as a rejection, also a lost response: the
// change may have been made, so that nothing can be concluded from it. The next observation shows the outcome. Members
// are identified by their IDs and not by their names, so that a plan cannot remove or promote a member that has joined
// with the same name since.
func (x *executor) changeMembers(ctx context.Context, a membership.Action) error {
	var err error
	switch a.Kind {
	case membership.AddLearner:
		err = x.Members.AddLearner(ctx, desired.PeerURL(x.cluster, a.Name))
	case membership.Promote:
		err = x.Members.Promote(ctx, a.ID)
	case membership.MoveLeader:
		err = x.Members.MoveLeader(ctx, a.ToID)
	case membership.RemoveMember:
		err = x.Members.Remove(ctx, a.ID)
	default:
		return fmt.Errorf("unknown action %q", a.Kind)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errRejected, err)
	}
	return nil
}

// writeIntent updates status.membership. It fails with a conflict if the cluster was updated since it was read.
//
// Bootstrapped is latched here: from then on, a missing volume means lost data and not a new cluster. It also completes
// a recovery, because the recovered member has formed its quorum. NextOrdinal grows with each name that is given out,
// before a member with that name exists, so that the name is not used again, whatever happens to the member.
func (x *executor) writeIntent(ctx context.Context, a membership.Action) error {
	before := x.cluster.DeepCopy()
	if x.cluster.Status.Membership == nil {
		x.cluster.Status.Membership = &v1alpha1.Membership{}
	}
	m := x.cluster.Status.Membership
	switch a.Kind {
	case membership.Bootstrap:
		m.InitialMembers = a.Names
	case membership.Bootstrapped:
		m.InitialMembers, m.Bootstrapped = nil, true
		if recovery := x.cluster.Status.Recovery; x.cluster.Recovering(v1alpha1.RecoveryStarting) {
			recovery.Stage, recovery.CompletedAt = v1alpha1.RecoveryCompleted, &metav1.Time{Time: x.Now}
		}
	case membership.StartJoin:
		m.JoiningMember, m.JoiningSince = a.Name, &metav1.Time{Time: x.Now}
	case membership.FinishJoin:
		m.JoiningMember, m.JoiningSince = "", nil
	}
	for _, name := range append([]string{a.Name}, a.Names...) {
		m.NextOrdinal = max(m.NextOrdinal, int32(membership.Ordinal(x.cluster.Name, name)+1))
	}
	return x.Client.Status().Patch(ctx, x.cluster,
		client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// createPod creates the pod of a member or of a stateless server.
//
// A member gets the configuration for an empty data directory (initialCluster) and the record of what its data must
// contain (volumes.MemberRecord): it exits if its volume does not have that data. While an upgrade is held, a member
// gets the image that it had before, and stateless servers get the next one, because they do not change etcd's data. A
// server connects to the voters of the present membership; if most of them are replaced later, its pod counts as
// outdated.
func (x *executor) createPod(ctx context.Context, a membership.Action) error {
	replica := desired.Replica{
		Name: a.Name, Member: a.Kind == membership.CreatePod,
		AuthorityHash: desired.AuthorityHash(x.cluster, x.Credentials.Bundles), Configuration: x.Configuration,
	}
	if replica.Member {
		replica.InitialCluster, replica.Record = initialCluster(x.State, a.Name), volumes.MemberRecord(x.State, a.Name)
	} else {
		for _, m := range x.State.Members {
			if !m.Learner {
				replica.Endpoints = append(replica.Endpoints, desired.ClientURL(x.cluster, m.Name))
			}
		}
	}
	image := x.State.Image
	if replica.Member {
		image = cmp.Or(x.formerImage, image)
	}
	pod, err := desired.Pod(x.cluster, image, replica, x.Credentials.MountedHash(x.cluster, x.Configuration))
	if err != nil {
		return err
	}
	return x.Create(ctx, x.cluster, pod)
}

// deletePod deletes a pod as it was observed: the UID as a precondition excludes a pod with the same name that was
// created since.
func (x *executor) deletePod(ctx context.Context, name string) error {
	pod := x.State.Pod(name)
	if pod == nil {
		return nil
	}
	return client.IgnoreNotFound(x.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}))
}

// holdUpgrade takes the backup before an upgrade of etcd, and returns why the upgrade waits, or "". Package upgrade
// decides.
func (x *executor) holdUpgrade(ctx context.Context, o membership.Observation) (string, error) {
	result, err := upgrade.Hold(ctx, x.Objects, upgrade.Input{
		State: x.State, Members: o.Members, HasQuorum: o.HasQuorum, Image: x.image, Window: x.result.Held,
	})
	x.formerImage = result.FormerImage
	return result.Held, err
}
