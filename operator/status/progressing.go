package status

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/membership"
)

// progressing: something is being changed, or waited for.
func progressing(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if in.World == nil {
		return unknown(v1alpha1.Progressing)
	}
	ready, wanted := in.World.ReadyReplicas(), desired.Replicas(cluster)
	switch {
	case in.Invalid != nil:
		return condition(v1alpha1.Progressing, false, "InvalidSpec", "nothing is changed until the spec is valid")
	case in.Refused != nil:
		return condition(v1alpha1.Progressing, true, "WaitingForEtcd", "%s: %v", in.Action.Kind, in.Refused)
	case in.Action.Kind != membership.Wait && in.Action.Kind != "":
		return condition(v1alpha1.Progressing, true, "Changing", "%s: %s", strings.TrimSpace(string(in.Action.Kind)+" "+in.Action.Name), in.Action.Reason)
	case in.Action.Reason != "":
		return condition(v1alpha1.Progressing, true, "Waiting", "%s", in.Action.Reason)
	case ready != wanted || len(in.World.Pods) != wanted:
		return condition(v1alpha1.Progressing, true, "WaitingForReplicas", "%d of %d API servers are ready", ready, wanted)
	}
	return condition(v1alpha1.Progressing, false, "AsWanted", "all is as the spec says")
}
