package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/schedule"
)

// readMembers reads the etcd members. An unreachable etcd is an observation, not an error.
func (r *Reconciler) readMembers(ctx context.Context, p *pass) (err error) {
	endpoints := p.state.Endpoints()
	switch {
	case p.cluster.ExternalEtcd():
		return nil
	case len(endpoints) == 0:
		p.state = p.state.WithMembers(nil, etcd.ErrUnreachable)
		return nil
	}
	key := client.ObjectKeyFromObject(p.cluster).String()
	p.etcd, err = r.Etcd.Get(key, endpoints, strconv.Itoa(desired.ClientPort), p.etcdCredentials())
	if err != nil {
		p.state = p.state.WithMembers(nil, err)
		return err
	}
	p.state = p.state.WithMembers(p.etcd.Members(ctx))
	if p.state.EtcdErr == nil {
		r.Etcd.Acknowledge(key, p.state.Members, p.input.Now)
	}
	p.state = p.state.WithAcknowledged(r.Etcd.Acknowledged(key))
	if p.state.QuorumLost(p.input.Now) {
		var names []string
		for _, member := range p.cluster.Status.Members {
			names = append(names, member.Name)
		}
		p.state = p.state.WithSurvivors(p.etcd.Survivors(ctx, names))
	}
	return nil
}

// observation translates the observed state and the spec into the input of membership.Plan. The pods in restart count
// as outdated.
func observation(s *observed.State, c desired.Configuration, restart map[string]bool, now time.Time) membership.Observation {
	o := membership.Observation{
		Cluster: s.Cluster.Name, External: s.Cluster.ExternalEtcd(),
		Replicas: s.Cluster.ReplicaCount(), Voters: s.Cluster.VoterCount(),
		Intent: intent(s.Cluster, now), Restoring: s.Cluster.Restoring() || s.Cluster.Recovering(v1alpha1.RecoveryRestoring),
		HasQuorum: s.EtcdErr == nil, QuorumLost: s.QuorumLost(now),
	}
	var voters []string
	for _, m := range s.Members {
		o.Members = append(o.Members, membership.Member{
			ID: m.ID, Name: m.Name, Learner: m.Learner, Started: m.Started, Healthy: m.Healthy, Leader: m.Leader,
			Applied: m.Applied, Lost: s.MemberLost(m, now), Refuses: s.MemberRefuses(m), Defragmented: lastDefragment(s.Cluster, m.Name),
			Database: membership.Database{Size: m.DBSize, InUse: m.InUse, Quota: m.Quota, NoSpace: m.NoSpace},
		})
		if !m.Learner {
			voters = append(voters, m.Name)
		}
	}
	hashes := desired.HashesOf(s.Cluster, s.Image, c)
	for i := range s.Pods {
		pod := &s.Pods[i]
		o.Pods = append(o.Pods, membership.Pod{
			Name: pod.Name, Member: observed.RunsMember(pod), Ready: observed.Ready(pod),
			Outdated: restart[pod.Name] || desired.Outdated(pod, hashes, voters), Failed: observed.Terminated(pod),
			Terminating: pod.DeletionTimestamp != nil,
		})
	}
	for i := range s.Claims {
		claim := &s.Claims[i]
		o.Claims = append(o.Claims, membership.Claim{
			Name: claim.Name, Lost: claim.Status.Phase == corev1.ClaimLost, Replaced: replacedClaim(s.Cluster, claim),
			Terminating: claim.DeletionTimestamp != nil,
		})
	}
	return o
}

// lastDefragment returns when a member was last defragmented, or zero.
func lastDefragment(cluster *v1alpha1.ApiServerCluster, name string) time.Time {
	for _, m := range cluster.Status.Members {
		if m.Name == name && m.LastDefragmentTime != nil {
			return m.LastDefragmentTime.Time
		}
	}
	return time.Time{}
}

func intent(cluster *v1alpha1.ApiServerCluster, now time.Time) membership.Intent {
	m := cluster.Status.Membership
	if m == nil {
		return membership.Intent{}
	}
	timedOut := m.JoiningMember != "" && m.JoiningSince != nil && now.Sub(m.JoiningSince.Time) > observed.JoinTimeout
	return membership.Intent{
		InitialMembers: m.InitialMembers, Bootstrapped: m.Bootstrapped, NextOrdinal: int(m.NextOrdinal),
		JoiningMember: m.JoiningMember, JoinTimedOut: timedOut,
	}
}

// maxActions limits the number of actions per reconciliation.
const maxActions = 16

// Plans are based on observations that are at most observationAge old when the first action is planned, and every
// action begins at most actionDeadline after the observation. The leader lease lasts longer: an operator that was
// suspended or partitioned and has lost the lease executes none of its former plans.
const (
	observationAge = 2 * time.Second
	actionDeadline = 5 * time.Second
)

// age returns the age of the observation by the wall clock, which advances while the machine is suspended.
func (r *Reconciler) age(p *pass) time.Duration {
	return r.Clock.Now().Round(0).Sub(p.observed.Round(0))
}

// refresh reads the state again if other steps have taken so long that it is too old.
func (r *Reconciler) refresh(ctx context.Context, p *pass) error {
	if r.age(p) <= observationAge {
		return nil
	}
	if err := r.observe(ctx, p); err != nil {
		return err
	}
	return r.readMembers(ctx, p)
}

// takeActions plans and executes actions until the outcome of one is uncertain, so that the state has to be read
// again, or until there is nothing left to do.
func (r *Reconciler) takeActions(ctx context.Context, p *pass) error {
	if p.restored {
		return nil
	}
	if err := r.refresh(ctx, p); err != nil {
		return err
	}
	o, certain := observation(p.state, p.configuration, p.restart, p.input.Now), true
	p.updated = countUpdated(o.Pods)
	o.Recovery, o.RolloutHeld = p.recovery(), p.holdRollout()
	o.Defragmentation = r.defragmentation(p)
	if o.Intent.Bootstrapped && o.Replicas > 0 {
		held, err := r.holdUpgrade(ctx, p, o)
		if err != nil {
			held = "Waiting until it is known whether a backup is needed before the upgrade"
			p.failed(ctx, err)
		}
		o.UpgradeHeld, o.Defragmentation.Held = held, cmp.Or(o.Defragmentation.Held, held)
	}
	for n := 0; certain && n < maxActions; n++ {
		a := membership.Plan(o)
		if a.Kind == membership.Wait && p.input.Action.Kind != "" {
			return nil // the status reports the previous action
		}
		p.input.Action = a
		if a.Kind == membership.Wait {
			return nil
		}
		if age := r.age(p); age > actionDeadline || age < 0 {
			return fmt.Errorf("%s %s: %w: it is %s old", a.Kind, a.Name, errStale, age)
		}
		if err := r.act(ctx, p, a); err != nil {
			return p.actionFailed(ctx, a, err)
		}
		r.reportAction(ctx, p, a)
		o, certain = o.Apply(a)
	}
	return nil
}

// holdRollout returns why healthy pods are not restarted now, or "".
func (p *pass) holdRollout() string {
	windows, err := desired.Windows(p.cluster)
	if err != nil {
		return "" // the spec is invalid, so nothing changes
	}
	opening := schedule.Opening(windows, p.input.Now)
	switch {
	case opening.IsZero():
		p.input.Held = "Waiting for a maintenance window; none will ever open"
	case opening.After(p.input.Now):
		p.input.Held = "Waiting for the maintenance window at " + opening.UTC().Format(time.RFC3339) + " to restart healthy replicas"
		p.requeueAt(opening)
	}
	return p.input.Held
}

// actionFailed returns the error of an action, except for a change that etcd rejected: it is retried.
func (p *pass) actionFailed(ctx context.Context, a membership.Action, err error) error {
	if !errors.Is(err, errRejected) {
		return fmt.Errorf("%s %s: %w", a.Kind, a.Name, err)
	}
	p.input.Rejected = err
	ctrl.LoggerFrom(ctx).V(1).Info("etcd rejected a membership change",
		"action", a.Kind, "name", a.Name, "reason", err.Error())
	return nil
}

func (r *Reconciler) reportAction(ctx context.Context, p *pass, a membership.Action) {
	ctrl.LoggerFrom(ctx).Info(a.Describe(), "action", a.Kind)
	e := event{
		related: relatedObject(p.cluster, a), reason: eventReasons[a.Kind], action: string(a.Kind), message: a.Describe(),
	}
	if a.Kind == membership.FinishDefragmentation && a.Reason != "" {
		e.warning, e.reason = true, v1alpha1.ReasonDefragmentationFailed
	}
	r.event(p.cluster, e)
}

// relatedObject returns the object besides the cluster that an action is about. It also keeps the recorder from merging
// equal events of several replicas.
func relatedObject(cluster *v1alpha1.ApiServerCluster, a membership.Action) *corev1.ObjectReference {
	if a.Name == "" {
		return nil
	}
	kind := "Pod"
	if a.Kind == membership.CreateClaim || a.Kind == membership.DeleteClaim {
		kind = "PersistentVolumeClaim"
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: kind, Namespace: cluster.Namespace, Name: a.Name}
}

// eventReasons are the reasons of the events of actions. Those of pods and claims are the ones of the StatefulSet
// controller.
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
	membership.CreatePod:    v1alpha1.ReasonSuccessfulCreate,
	membership.CreateServer: v1alpha1.ReasonSuccessfulCreate,
	membership.DeletePod:    v1alpha1.ReasonSuccessfulDelete,
}

// errRejected wraps errors of changes that etcd may accept later, for example because a member has not been connected
// for long enough, a learner has not caught up, or the leader has just changed.
var errRejected = errors.New("rejected by etcd")

func (r *Reconciler) act(ctx context.Context, p *pass, a membership.Action) error {
	switch a.Kind {
	case membership.Bootstrap, membership.Bootstrapped, membership.StartJoin, membership.FinishJoin:
		return r.writeIntent(ctx, p, a)
	case membership.StartRecovery, membership.RestoreQuorum, membership.DeclineRecovery:
		return r.writeRecovery(ctx, p, a)
	case membership.StartDefragmentation, membership.ResumeDefragmentation, membership.FinishDefragmentation:
		return r.writeDefragmentation(ctx, p, a)
	case membership.CreateClaim:
		return r.create(ctx, p.cluster, desired.Claim(p.cluster, a.Name))
	case membership.CreatePod, membership.CreateServer:
		return r.createPod(ctx, p, a)
	case membership.DeletePod:
		return r.deletePod(ctx, p, a.Name)
	case membership.DeleteClaim:
		return r.deleteClaim(ctx, p, a.Name)
	}
	return p.changeMembers(ctx, a)
}

func (p *pass) changeMembers(ctx context.Context, a membership.Action) error {
	var err error
	switch a.Kind {
	case membership.AddLearner:
		err = p.etcd.AddLearner(ctx, desired.PeerURL(p.cluster, a.Name))
	case membership.Promote:
		err = p.etcd.Promote(ctx, a.ID)
	case membership.MoveLeader:
		err = p.etcd.MoveLeader(ctx, a.ToID)
	case membership.RemoveMember:
		err = p.etcd.Remove(ctx, a.ID)
	default:
		return fmt.Errorf("unknown action %q", a.Kind)
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errRejected, err)
	}
	return nil
}

// writeIntent updates status.membership. It fails with a conflict if the cluster was updated since it was read.
func (r *Reconciler) writeIntent(ctx context.Context, p *pass, a membership.Action) error {
	before := p.cluster.DeepCopy()
	if p.cluster.Status.Membership == nil {
		p.cluster.Status.Membership = &v1alpha1.Membership{}
	}
	m := p.cluster.Status.Membership
	switch a.Kind {
	case membership.Bootstrap:
		m.InitialMembers = a.Names
	case membership.Bootstrapped:
		m.InitialMembers, m.Bootstrapped = nil, true
		if recovery := p.cluster.Status.Recovery; p.cluster.Recovering(v1alpha1.RecoveryStarting) {
			recovery.Stage, recovery.CompletedAt = v1alpha1.RecoveryCompleted, &metav1.Time{Time: p.input.Now}
		}
	case membership.StartJoin:
		m.JoiningMember, m.JoiningSince = a.Name, &metav1.Time{Time: p.input.Now}
	case membership.FinishJoin:
		m.JoiningMember, m.JoiningSince = "", nil
	}
	for _, name := range append([]string{a.Name}, a.Names...) {
		m.NextOrdinal = max(m.NextOrdinal, int32(membership.Ordinal(p.cluster.Name, name)+1))
	}
	return r.Client.Status().Patch(ctx, p.cluster, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

func (r *Reconciler) createPod(ctx context.Context, p *pass, a membership.Action) error {
	replica := desired.Replica{
		Name: a.Name, Member: a.Kind == membership.CreatePod,
		AuthorityHash: desired.AuthorityHash(p.cluster, p.certificates.bundles), Configuration: p.configuration,
	}
	if replica.Member {
		replica.InitialCluster, replica.Record = initialCluster(p.state, a.Name), memberRecord(p.state, a.Name)
	} else {
		for _, m := range p.state.Members {
			if !m.Learner {
				replica.Endpoints = append(replica.Endpoints, desired.ClientURL(p.cluster, m.Name))
			}
		}
	}
	image := p.state.Image
	if replica.Member {
		image = cmp.Or(p.formerImage, image)
	}
	pod, err := desired.Pod(p.cluster, image, replica, p.mountedHash())
	if err != nil {
		return err
	}
	return r.create(ctx, p.cluster, pod)
}

// initialCluster returns the configuration of a member for an empty data directory. For a member that has run before it
// contains only that member: etcd then refuses to start without data instead of voting twice in one term. The same holds
// for a member whose volume has a restored backup, or that continues after the loss of the quorum, and for the initial
// members of a cluster whose status was lost.
func initialCluster(s *observed.State, name string) desired.InitialCluster {
	initial := desired.InitialCluster{PeerURLs: map[string]string{name: desired.PeerURL(s.Cluster, name)}}
	fresh := s.Cluster.Spec.Restore == nil && !s.Cluster.Recovering(v1alpha1.RecoveryRestoring, v1alpha1.RecoveryStarting) &&
		!memberRecord(s, name).Started
	if intent := s.Cluster.Status.Membership; intent != nil && !intent.Bootstrapped && fresh {
		initial.New = true
		for _, member := range intent.InitialMembers {
			initial.PeerURLs[member] = desired.PeerURL(s.Cluster, member)
		}
		return initial
	}
	if member := s.Member(name); member != nil && !member.Started {
		for _, m := range s.Members {
			initial.PeerURLs[m.Name] = m.PeerURL
		}
	}
	return initial
}

func (r *Reconciler) deletePod(ctx context.Context, p *pass, name string) error {
	pod := p.state.Pod(name)
	if pod == nil {
		return nil
	}
	return client.IgnoreNotFound(r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}))
}

func (r *Reconciler) deleteClaim(ctx context.Context, p *pass, name string) error {
	claim := p.state.Claim(name)
	if claim == nil {
		return nil
	}
	return client.IgnoreNotFound(r.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}))
}
