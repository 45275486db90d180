package sandbox

import (
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"

	"quorate.dev/operator/api/v1alpha1"
)

// summary says in a few words how a cluster is.
func summary(cluster *v1alpha1.ApiServerCluster) string {
	status := cluster.Status
	text := fmt.Sprintf("%d/%d ready", status.ReadyReplicas, wanted(cluster))
	switch {
	case cluster.DeletionTimestamp != nil:
		return text + ", being deleted"
	case cluster.Spec.Etcd.External != nil:
		text += ", external etcd"
	case status.Voters == 1:
		text += ", etcd 1 voter"
	case status.Voters > 1:
		text += fmt.Sprintf(", etcd %d voters", status.Voters)
	}
	for _, member := range status.Members {
		if member.Role == "leader" {
			text += ", leader " + member.Name
		}
	}
	if degraded := meta.FindStatusCondition(status.Conditions, v1alpha1.Degraded); degraded != nil && degraded.Status == "True" {
		text += ", degraded: " + degraded.Message
	}
	return text
}

func wanted(cluster *v1alpha1.ApiServerCluster) int32 {
	if cluster.Spec.Replicas == nil {
		return 3
	}
	return *cluster.Spec.Replicas
}

// settled reports whether a cluster is all that its spec asks for.
func settled(cluster *v1alpha1.ApiServerCluster) bool {
	status := cluster.Status
	return status.ObservedGeneration == cluster.Generation && status.ReadyReplicas == wanted(cluster) &&
		meta.IsStatusConditionTrue(status.Conditions, v1alpha1.Available) &&
		!meta.IsStatusConditionTrue(status.Conditions, v1alpha1.Progressing)
}
