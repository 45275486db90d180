package status

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
)

// progressing is true while the operator changes the cluster or waits for a change to take effect.
func progressing(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if in.State == nil {
		return unknown(v1alpha1.Progressing)
	}
	ready, replicas := in.State.ReadyReplicas(), cluster.ReplicaCount()
	switch {
	case in.Lost != nil:
		return condition(v1alpha1.Progressing, false, v1alpha1.ReasonSecretLost,
			"The operator makes no changes until the lost Secret is restored")
	case in.Invalid != nil:
		return condition(v1alpha1.Progressing, false, v1alpha1.ReasonInvalidSpec,
			"The operator makes no changes until the spec is valid")
	case cluster.Paused(in.Now):
		return condition(v1alpha1.Progressing, false, v1alpha1.ReasonPaused,
			"The operator makes no changes while the cluster is paused")
	case !cluster.ExternalEtcd() && in.State.QuorumLost(in.Now) && in.Action.Kind == membership.Wait:
		return condition(v1alpha1.Progressing, false, observed.QuorumLostReason,
			"The operator makes no changes. %s", in.Action.Reason)
	case in.Rejected != nil:
		return condition(v1alpha1.Progressing, true, v1alpha1.ReasonWaitingForEtcd,
			"Retrying after etcd rejected a change: %v", in.Rejected)
	case in.Action.Kind != membership.Wait && in.Action.Kind != "" && len(in.Errors) > 0:
		return condition(v1alpha1.Progressing, true, v1alpha1.ReasonRetrying,
			"Retrying after an error: %s %s", in.Action.Kind, in.Action.Name)
	case in.Action.Kind != membership.Wait && in.Action.Kind != "":
		return condition(v1alpha1.Progressing, true, v1alpha1.ReasonReconciling, "%s", in.Action.Describe())
	case in.Action.Reason != "" && in.Action.Reason == in.Held:
		return condition(v1alpha1.Progressing, true, v1alpha1.ReasonWaitingForMaintenanceWindow, "%s", in.Held)
	case in.Action.Reason != "":
		return condition(v1alpha1.Progressing, true, v1alpha1.ReasonWaiting, "%s", in.Action.Reason)
	case ready != replicas || len(in.State.Pods) != replicas:
		return condition(v1alpha1.Progressing, true, v1alpha1.ReasonWaitingForReplicas,
			"%d of %d API servers are ready", ready, replicas)
	}
	return condition(v1alpha1.Progressing, false, v1alpha1.ReasonReconciled, "Observed state matches the spec")
}
