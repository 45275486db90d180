package status

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/observed"
)

// quorum: a majority of the voters agrees.
func quorum(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if in.World == nil {
		return unknown(v1alpha1.EtcdQuorum)
	}
	if in.World.Etcd != nil && !formed(cluster) {
		return condition(v1alpha1.EtcdQuorum, false, "Forming", "the first members have not formed a cluster yet: %s", oneLine(in.World.Etcd))
	}
	if in.World.QuorumLost(in.Now) {
		return condition(v1alpha1.EtcdQuorum, false, observed.QuorumLostReason, "%s", oneLine(in.World.Etcd))
	}
	if in.World.Etcd != nil {
		return metav1.Condition{Type: v1alpha1.EtcdQuorum, Status: metav1.ConditionUnknown, Reason: "NoAnswer", Message: oneLine(in.World.Etcd)}
	}
	voters, healthy := in.World.Voters()
	if healthy < voters {
		return condition(v1alpha1.EtcdQuorum, true, "MemberUnhealthy", "%d of %d voters answer", healthy, voters)
	}
	return condition(v1alpha1.EtcdQuorum, true, "Healthy", "all %d voters are healthy", voters)
}
