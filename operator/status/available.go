package status

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// available: at least one API server is ready, and what it stores is safe with a quorum.
func available(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if in.World == nil {
		return unknown(v1alpha1.Available)
	}
	ready, wanted := in.World.ReadyReplicas(), desired.Replicas(cluster)
	switch {
	case cluster.Spec.Etcd.External == nil && in.World.QuorumLost(in.Now):
		return condition(v1alpha1.Available, false, "QuorumLost", "etcd has no quorum")
	case ready == 0:
		return condition(v1alpha1.Available, false, "NoReplicaReady", "none of %d API servers is ready", wanted)
	}
	return condition(v1alpha1.Available, true, "Serving", "%d of %d API servers are ready", ready, wanted)
}

func formed(cluster *v1alpha1.ApiServerCluster) bool {
	return cluster.Status.Membership != nil && cluster.Status.Membership.Formed
}
