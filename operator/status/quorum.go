package status

import (
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
)

// quorum is true when a majority of the voters agrees.
func quorum(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if in.State == nil {
		return unknown(v1alpha1.EtcdQuorum)
	}
	if cluster.Hibernated() {
		return condition(v1alpha1.EtcdQuorum, false, v1alpha1.ReasonHibernated, "spec.replicas is 0")
	}
	if in.State.EtcdErr != nil && cluster.Recovering(v1alpha1.RecoveryRestoring, v1alpha1.RecoveryStarting) {
		return condition(v1alpha1.EtcdQuorum, false, v1alpha1.ReasonRecovering, "Continuing with the data of %s", cluster.Status.Recovery.Source())
	}
	if in.State.EtcdErr != nil && !cluster.Bootstrapped() {
		return condition(v1alpha1.EtcdQuorum, false, v1alpha1.ReasonBootstrappingEtcd,
			"Waiting for the initial members to form a quorum: %s", oneLine(in.State.EtcdErr))
	}
	if in.State.QuorumLost(in.Now) {
		return condition(v1alpha1.EtcdQuorum, false, observed.QuorumLostReason, "%s%s",
			survivors(in.State.Survivors), oneLine(in.State.EtcdErr))
	}
	if in.State.EtcdErr != nil && !in.State.Unreachable() {
		c := unknown(v1alpha1.EtcdQuorum)
		c.Message = oneLine(in.State.EtcdErr)
		return c
	}
	if in.State.EtcdErr != nil {
		return metav1.Condition{
			Type: v1alpha1.EtcdQuorum, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonEtcdUnreachable, Message: oneLine(in.State.EtcdErr),
		}
	}
	voters, healthy := in.State.Voters()
	if healthy < voters {
		return condition(v1alpha1.EtcdQuorum, true, v1alpha1.ReasonMembersUnhealthy, "%d of %d voters are healthy", healthy, voters)
	}
	return condition(v1alpha1.EtcdQuorum, true, v1alpha1.ReasonMembersHealthy, "%d of %d voters are healthy", healthy, voters)
}

// survivors describes the data of each member, which helps users to choose how to recover.
func survivors(members []etcd.Survivor) string {
	var out strings.Builder
	for _, m := range members {
		if m.Reachable {
			fmt.Fprintf(&out, "%s has revision %d (raft term %d, index %d); ", m.Name, m.Revision, m.Term, m.Index)
		} else {
			fmt.Fprintf(&out, "%s is unreachable; ", m.Name)
		}
	}
	return out.String()
}
