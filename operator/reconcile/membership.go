package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
)

// askEtcd reads the member list. That nobody answers is an observation, not an error.
func (r *Reconciler) askEtcd(ctx context.Context, p *pass) (err error) {
	endpoints := p.world.Endpoints()
	if p.cluster.Spec.Etcd.External != nil || len(endpoints) == 0 {
		return nil
	}
	leaf := p.pki.leaves[desired.OperatorEtcdSecret]
	p.etcd, err = r.Etcd.Get(client.ObjectKeyFromObject(p.cluster).String(), endpoints, strconv.Itoa(desired.ClientPort), etcd.Credentials{
		Authority: p.pki.authorities[desired.EtcdClientDomain].Certificate, Certificate: leaf.Certificate, Key: leaf.Key,
		ServerName: desired.MembersDomain(p.cluster),
	})
	if err != nil {
		p.world.Etcd = err
		return err
	}
	p.world.Ask(ctx, p.etcd)
	return nil
}

// actionsPerPass bounds how many things are made in one pass.
const actionsPerPass = 16

// takeAction plans and does the next thing. After something new was made or an intent written, which this pass knows as
// well as a new look would tell it, it goes on; after anything else the world is looked at first.
func (r *Reconciler) takeAction(ctx context.Context, p *pass) error {
	for range actionsPerPass {
		a := membership.Plan(p.world.Observation(p.input.Now))
		if a.Kind == membership.Wait && p.input.Action.Kind != "" {
			return nil // the status tells what was done
		}
		p.input.Action = a
		if a.Kind == membership.Wait {
			return nil
		}
		if err := r.act(ctx, p, a); err != nil {
			return p.refused(ctx, a, err)
		}
		r.tell(ctx, p, a)
		if !slices.Contains(constructive, a.Kind) {
			return nil
		}
	}
	return nil
}

var constructive = []membership.Kind{
	membership.Found, membership.Reserve, membership.CreateClaim, membership.CreatePod, membership.CreateServer,
}

// refused keeps what etcd did not do apart from what failed.
func (p *pass) refused(ctx context.Context, a membership.Action, err error) error {
	if !errors.Is(err, errRefused) {
		return fmt.Errorf("%s %s: %w", a.Kind, a.Name, err)
	}
	p.input.Refused = err
	ctrl.LoggerFrom(ctx).V(1).Info("etcd is not ready for it yet", "action", a.Kind, "name", a.Name, "reason", err.Error())
	return nil
}

func (r *Reconciler) tell(ctx context.Context, p *pass, a membership.Action) {
	subject := strings.Join(append([]string{a.Name}, a.Names...), " ")
	if a.To != "" {
		subject += " to " + a.To
	}
	subject = strings.TrimSpace(subject)
	ctrl.LoggerFrom(ctx).Info("done", "action", a.Kind, "name", subject, "reason", a.Reason)
	r.event(p.cluster, replicaOf(p.cluster, a), corev1.EventTypeNormal, reasons[a.Kind], string(a.Kind), "%s", note(subject, a.Reason))
}

// replicaOf is what an action is about besides the cluster. It also keeps events about several replicas apart: equal ones are
// merged by the recorder.
func replicaOf(cluster *v1alpha1.ApiServerCluster, a membership.Action) *corev1.ObjectReference {
	if a.Name == "" {
		return nil
	}
	kind := "Pod"
	if a.Kind == membership.CreateClaim || a.Kind == membership.DeleteClaim {
		kind = "PersistentVolumeClaim"
	}
	return &corev1.ObjectReference{APIVersion: "v1", Kind: kind, Namespace: cluster.Namespace, Name: a.Name}
}

func note(subject, reason string) string {
	if subject == "" {
		return reason
	}
	return subject + ": " + reason
}

// reasons of events.
var reasons = map[membership.Kind]string{
	membership.Found: "Founding", membership.Formed: "EtcdFormed", membership.Reserve: "MemberJoining", membership.Settle: "MemberSettled",
	membership.AddLearner: "LearnerAdded", membership.Promote: "LearnerPromoted", membership.MoveLeader: "LeaderMoved",
	membership.RemoveMember: "MemberRemoved", membership.CreateClaim: "ClaimCreated", membership.DeleteClaim: "ClaimDeleted",
	membership.CreatePod: "PodCreated", membership.CreateServer: "PodCreated", membership.DeletePod: "PodDeleted",
}

// errRefused wraps what etcd does not do now, but may do later: a member has not been connected for long enough, a learner
// is not ready, the leader has just changed.
var errRefused = errors.New("refused")

func (r *Reconciler) act(ctx context.Context, p *pass, a membership.Action) error {
	switch a.Kind {
	case membership.Found, membership.Formed, membership.Reserve, membership.Settle:
		return r.writeIntent(ctx, p, a)
	case membership.CreateClaim:
		claim := desired.Claim(p.cluster, a.Name)
		if err := r.create(ctx, p.cluster, claim); err != nil {
			return err
		}
		p.world.Claims = append(p.world.Claims, *claim)
		return nil
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
		return fmt.Errorf("%w: %w", errRefused, err)
	}
	return nil
}

// writeIntent writes down what will be done, unless somebody else wrote since this pass read the cluster.
func (r *Reconciler) writeIntent(ctx context.Context, p *pass, a membership.Action) error {
	before := p.cluster.DeepCopy()
	if p.cluster.Status.Membership == nil {
		p.cluster.Status.Membership = &v1alpha1.Membership{}
	}
	m := p.cluster.Status.Membership
	switch a.Kind {
	case membership.Found:
		m.Founders = a.Names
	case membership.Formed:
		m.Founders, m.Formed = nil, true
	case membership.Reserve:
		m.Joining, m.JoiningSince = a.Name, &metav1.Time{Time: p.input.Now}
	case membership.Settle:
		m.Joining, m.JoiningSince = "", nil
	}
	for _, name := range append([]string{a.Name}, a.Names...) {
		m.NextOrdinal = max(m.NextOrdinal, int32(membership.Ordinal(p.cluster.Name, name)+1))
	}
	return r.Client.Status().Patch(ctx, p.cluster, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

func (r *Reconciler) createPod(ctx context.Context, p *pass, a membership.Action) error {
	replica := desired.Replica{Name: a.Name, Member: a.Kind == membership.CreatePod}
	if replica.Member {
		replica.Start = p.start(a.Name)
	} else {
		for _, m := range p.world.Members {
			if !m.Learner {
				replica.Endpoints = append(replica.Endpoints, desired.ClientURL(p.cluster, m.Name))
			}
		}
	}
	pod, err := desired.Pod(p.cluster, p.world.Image, replica, p.pki.hash())
	if err != nil {
		return err
	}
	if err := r.create(ctx, p.cluster, pod); err != nil {
		return err
	}
	p.world.Pods = append(p.world.Pods, *pod)
	return nil
}

// start is what a member is told in case it has no data. One that has run before is named alone: etcd then refuses to start
// without its data, instead of voting again without remembering what it voted for.
func (p *pass) start(name string) desired.Start {
	start := desired.Start{Cluster: map[string]string{name: desired.PeerURL(p.cluster, name)}}
	if intent := p.cluster.Status.Membership; intent != nil && !intent.Formed {
		start.New = true
		for _, founder := range intent.Founders {
			start.Cluster[founder] = desired.PeerURL(p.cluster, founder)
		}
		return start
	}
	if member := p.world.Member(name); member != nil && !member.Started {
		for _, m := range p.world.Members {
			start.Cluster[m.Name] = m.PeerURL
		}
	}
	return start
}

func (r *Reconciler) deletePod(ctx context.Context, p *pass, name string) error {
	pod := p.world.Pod(name)
	if pod == nil {
		return nil
	}
	return client.IgnoreNotFound(r.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID}))
}

func (r *Reconciler) deleteClaim(ctx context.Context, p *pass, name string) error {
	for i := range p.world.Claims {
		if claim := &p.world.Claims[i]; claim.Name == name {
			return client.IgnoreNotFound(r.Client.Delete(ctx, claim, client.Preconditions{UID: &claim.UID}))
		}
	}
	return nil
}
