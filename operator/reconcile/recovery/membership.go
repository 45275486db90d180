package recovery

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/volumes"
)

// Observation translates the user's request and its progress into the input of membership.Plan. podAbsent reports that
// no pod is known to prepare data. A new request takes precedence over the recorded one. Members that do not respond
// are no survivors, because the revision of their data is unknown. The stage Starting is not translated:
// membership.Plan then bootstraps an etcd with one initial member, as in a new cluster.
func Observation(state *observed.State, podAbsent bool) membership.Recovery {
	cluster, current := state.Cluster, state.Cluster.Status.Recovery
	active := cluster.Recovering(v1alpha1.RecoveryStopping, v1alpha1.RecoveryRestoring, v1alpha1.RecoveryStarting)
	if cluster.RecoveryRequested() {
		request := cluster.Spec.Recovery
		r := membership.Recovery{
			Stage: membership.RecoveryRequested, Member: request.Member, FromBackup: request.From != nil, Replacing: active,
		}
		for _, s := range state.Survivors {
			if s.Reachable {
				r.Survivors = append(r.Survivors, membership.Survivor{
					Name: s.Name, Revision: s.Revision, Term: s.Term, Index: s.Index,
				})
			}
		}
		return r
	}
	stages := map[v1alpha1.RecoveryStage]membership.RecoveryStage{
		v1alpha1.RecoveryStopping: membership.RecoveryStopping, v1alpha1.RecoveryRestoring: membership.RecoveryRestoring,
	}
	if current == nil {
		return membership.Recovery{}
	}
	return membership.Recovery{
		Stage: stages[current.Stage], FromBackup: current.Request.From != nil, SelectedName: current.Member,
		JobRunning: !podAbsent,
	}
}

// Write updates status.recovery as an action of membership.Plan demands, and with it the membership. It fails with a
// conflict if the cluster was updated since it was read.
//
// The membership is replaced only in RestoreQuorum, after all pods have stopped: until then, it still describes the
// members that run. The same write forgets the member IDs, volumes and acknowledged states of the former members, which
// describe a log that no longer exists. The next ordinal is kept, so that no name of a former member is used again.
func Write(
	ctx context.Context, objects owned.Objects, state *observed.State, a membership.Action, at time.Time,
) error {
	cluster, before, now := state.Cluster, state.Cluster.DeepCopy(), metav1.NewTime(at)
	s := &cluster.Status
	if s.Membership == nil {
		s.Membership = &v1alpha1.Membership{}
	}
	switch a.Kind {
	case membership.StartRecovery:
		s.Recovery = &v1alpha1.RecoveryStatus{
			Request: *cluster.Spec.Recovery, Stage: v1alpha1.RecoveryStopping, Member: a.Name, StartedAt: now,
			Survivors: survivorsOf(state, before.Status.Recovery), AcknowledgedRevision: acknowledgedRevision(state),
		}
		s.Membership.NextOrdinal = max(s.Membership.NextOrdinal, int32(membership.Ordinal(cluster.Name, a.Name)+1))
	case membership.RestoreQuorum:
		s.Recovery.Stage = v1alpha1.RecoveryRestoring
		s.Membership = &v1alpha1.Membership{InitialMembers: a.Names, NextOrdinal: s.Membership.NextOrdinal}
		for i := range s.Members { // the recovered data has another member ID and another log
			s.Members[i].ID, s.Members[i].Volume, s.Members[i].Acknowledged = "", "", nil
		}
	case membership.DeclineRecovery:
		s.Recovery = &v1alpha1.RecoveryStatus{
			Request: *cluster.Spec.Recovery, Stage: v1alpha1.RecoveryNotNeeded, StartedAt: now, CompletedAt: &now,
		}
	}
	return objects.Client.Status().Patch(ctx, cluster,
		client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// acknowledgedRevision returns the newest revision that a member is known to have reached, or 0. It is stored when a
// recovery begins, because the members' records are forgotten later: the difference to the recovered revision is
// reported as lost.
func acknowledgedRevision(s *observed.State) int64 {
	newest := int64(0)
	for _, m := range s.Cluster.Status.Members {
		newest = max(newest, volumes.Acknowledged(s, m.Name, observed.ParseMemberID(m.ID)).Revision)
	}
	return newest
}

// survivorsOf describes the reachable members. A request that replaces another keeps the survivors that were known
// before the pods stopped.
func survivorsOf(s *observed.State, replaced *v1alpha1.RecoveryStatus) []string {
	var survivors []string
	for _, m := range s.Survivors {
		if m.Reachable {
			survivors = append(survivors, fmt.Sprintf("%s: revision %d", m.Name, m.Revision))
		}
	}
	if len(survivors) == 0 && replaced != nil && replaced.CompletedAt == nil {
		return replaced.Survivors
	}
	return survivors
}
