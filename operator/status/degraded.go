package status

import (
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/observed"
)

// degraded: something is wrong that does not go away by waiting a moment.
func degraded(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	switch {
	case in.Invalid != nil:
		return condition(v1alpha1.Degraded, true, "InvalidSpec", "%s", oneLine(in.Invalid))
	case len(in.Errors) > 0:
		return condition(v1alpha1.Degraded, true, "ReconcileFailed", "%s", oneLine(errors.Join(in.Errors...)))
	case in.World == nil:
		return unknown(v1alpha1.Degraded)
	case cluster.Spec.Etcd.External == nil && in.World.QuorumLost(in.Now):
		return condition(v1alpha1.Degraded, true, "QuorumLost", "etcd has no quorum; the operator changes nothing that could make it worse")
	}
	for _, m := range in.World.Members {
		if len(m.Alarms) > 0 {
			return condition(v1alpha1.Degraded, true, "EtcdAlarm", "%s: %s", m.Name, strings.Join(m.Alarms, "; "))
		}
	}
	var troubles []string
	for i := range in.World.Pods {
		if trouble := podTrouble(&in.World.Pods[i]); trouble != "" {
			troubles = append(troubles, trouble)
		}
	}
	if len(troubles) > 0 {
		slices.Sort(troubles)
		return condition(v1alpha1.Degraded, true, "PodsFailing", "%s", strings.Join(troubles, "; "))
	}
	return condition(v1alpha1.Degraded, false, "AsExpected", "no problem is known")
}

// podTrouble names what keeps a pod from running.
func podTrouble(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil || observed.Ready(pod) {
		return ""
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return pod.Name + " cannot be scheduled: " + c.Message
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		waiting := c.State.Waiting
		if waiting == nil {
			continue
		}
		switch waiting.Reason {
		case "CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError", "CreateContainerError":
			return strings.TrimSpace(pod.Name + ": " + waiting.Reason + " " + lastWords(c))
		}
	}
	return ""
}

// lastWords are the end of what a container said before it ended.
func lastWords(c corev1.ContainerStatus) string {
	if c.LastTerminationState.Terminated == nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(c.LastTerminationState.Terminated.Message), "\n")
	last := lines[len(lines)-1]
	if len(last) > 300 {
		last = last[:300] + "..."
	}
	return last
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
