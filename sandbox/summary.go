package sandbox

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"

	"quorate.dev/operator/api/v1alpha1"
)

// summary returns the state of a cluster in a few words, for its row.
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
	if degraded := meta.FindStatusCondition(status.Conditions, v1alpha1.Degraded); degraded != nil &&
		degraded.Status == "True" {
		text += ", degraded: " + brief(degraded.Message)
	}
	return text
}

// briefLength is the maximum length, in bytes, of a printed message.
const briefLength = 100

// brief returns the beginning of the first line of a message.
func brief(message string) string {
	message, _, _ = strings.Cut(message, "\n")
	if len(message) > briefLength {
		return strings.ToValidUTF8(message[:briefLength], "") + "..."
	}
	return message
}

func wanted(cluster *v1alpha1.ApiServerCluster) int32 {
	if cluster.Spec.Replicas == nil {
		return 3
	}
	return *cluster.Spec.Replicas
}

// settled reports whether the status of a cluster matches its spec.
func settled(cluster *v1alpha1.ApiServerCluster) bool {
	status := cluster.Status
	return status.ObservedGeneration == cluster.Generation && status.ReadyReplicas == wanted(cluster) &&
		meta.IsStatusConditionTrue(status.Conditions, v1alpha1.Available) &&
		!meta.IsStatusConditionTrue(status.Conditions, v1alpha1.Progressing)
}
