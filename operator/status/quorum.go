package status

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/observed"
)

// quorum is true when a quorum of the voters has confirmed the member list. Its reason shows whether all voters are
// healthy.
func quorum(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if in.State == nil {
		return unknown(v1alpha1.EtcdQuorum)
	}
	if cluster.Hibernated() {
		return condition(v1alpha1.EtcdQuorum, false, v1alpha1.ReasonHibernated, "spec.replicas is 0")
	}
	if in.State.EtcdErr != nil && cluster.Recovering(v1alpha1.RecoveryRestoring, v1alpha1.RecoveryStarting) {
		return condition(v1alpha1.EtcdQuorum, false, v1alpha1.ReasonRecovering, "Continuing with the data of %s",
			cluster.Status.Recovery.Source())
	}
	if in.State.EtcdErr != nil && !cluster.Bootstrapped() && !in.State.QuorumLost(in.Now) {
		return condition(v1alpha1.EtcdQuorum, false, v1alpha1.ReasonBootstrappingEtcd,
			"Waiting for the initial members to form a quorum: %s", oneLine(in.State.EtcdErr))
	}
	if in.State.QuorumLost(in.Now) {
		return condition(v1alpha1.EtcdQuorum, false, observed.QuorumLostReason, "%s%s%s",
			survivors(in.State), acknowledgedRevisions(in.State), oneLine(in.State.EtcdErr))
	}
	if in.State.EtcdErr != nil && !in.State.Unreachable() {
		c := unknown(v1alpha1.EtcdQuorum)
		c.Message = oneLine(in.State.EtcdErr)
		return c
	}
	if in.State.EtcdErr != nil {
		return metav1.Condition{
			Type: v1alpha1.EtcdQuorum, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonEtcdUnreachable,
			Message: oneLine(in.State.EtcdErr),
		}
	}
	voters, healthy := in.State.Voters()
	if healthy < voters {
		return condition(v1alpha1.EtcdQuorum, true, v1alpha1.ReasonMembersUnhealthy, "%d of %d voters are healthy",
			healthy, voters)
	}
	return condition(v1alpha1.EtcdQuorum, true, v1alpha1.ReasonMembersHealthy, "%d of %d voters are healthy",
		healthy, voters)
}

// survivors describes the data of each member, which helps users to choose how to recover.
func survivors(s *observed.State) string {
	var out strings.Builder
	for _, m := range s.Survivors {
		pod := s.Pod(m.Name)
		switch {
		case m.Reachable:
			fmt.Fprintf(&out, "%s has revision %d (raft term %d, index %d); ", m.Name, m.Revision, m.Term, m.Index)
		case s.LostWrites(m.Name) != "":
			fmt.Fprintf(&out, "%s has acknowledged writes that the other members lack; ", m.Name)
		case pod != nil && observed.Refuses(pod):
			fmt.Fprintf(&out, "%s does not start, because its volume does not have its data; ", m.Name)
		default:
			fmt.Fprintf(&out, "%s is unreachable; ", m.Name)
		}
	}
	return out.String()
}

// acknowledgedRevisions describes the newest revision that any member is known to have acknowledged, if no reachable
// member has it: the revisions in between may be lost. Otherwise it returns "".
func acknowledgedRevisions(s *observed.State) string {
	var acknowledged, found int64
	for _, m := range s.Cluster.Status.Members {
		if m.Acknowledged != nil {
			acknowledged = max(acknowledged, m.Acknowledged.Revision)
		}
	}
	for _, state := range s.Acknowledged {
		acknowledged = max(acknowledged, state.Revision)
	}
	for _, m := range s.Survivors {
		if m.Reachable {
			found = max(found, m.Revision)
		}
	}
	if acknowledged <= found {
		return ""
	}
	if found == 0 {
		return fmt.Sprintf("revision %d was acknowledged; ", acknowledged)
	}
	return fmt.Sprintf("revision %d was acknowledged, so a recovery would lose revisions %d to %d unless an unreachable "+
		"member has them; ",
		acknowledged, found+1, acknowledged)
}
