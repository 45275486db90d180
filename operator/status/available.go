package status

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/observed"
)

// available is true when at least one API server is ready and etcd has a quorum.
func available(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if in.State == nil {
		return unknown(v1alpha1.Available)
	}
	ready, replicas := in.State.ReadyReplicas(), cluster.ReplicaCount()
	switch {
	case cluster.Hibernated():
		return condition(v1alpha1.Available, false, v1alpha1.ReasonHibernated, "spec.replicas is 0")
	case !cluster.ExternalEtcd() && in.State.QuorumLost(in.Now):
		return condition(v1alpha1.Available, false, observed.QuorumLostReason, "etcd has no quorum")
	case ready == 0:
		return condition(v1alpha1.Available, false, v1alpha1.ReasonNoReadyReplicas, "0 of %d API servers are ready", replicas)
	}
	return condition(v1alpha1.Available, true, v1alpha1.ReasonServing, "%d of %d API servers are ready", ready, replicas)
}
