package observed

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Problem returns why a pod cannot run, or "".
func Problem(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil || Ready(pod) {
		return ""
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return pod.Name + " is unschedulable: " + c.Message
		}
	}
	for _, c := range pod.Status.ContainerStatuses {
		waiting := c.State.Waiting
		if waiting == nil {
			continue
		}
		if slices.Contains(failingReasons, waiting.Reason) {
			return strings.TrimSpace(pod.Name + ": " + waiting.Reason + " " + cmp.Or(terminationMessage(c), lastLine(waiting.Message)))
		}
	}
	return ""
}

// terminationMessage returns the last line of the message of a container's last termination, or "".
func terminationMessage(c corev1.ContainerStatus) string {
	if c.LastTerminationState.Terminated == nil {
		return ""
	}
	return lastLine(c.LastTerminationState.Terminated.Message)
}

// lastLine returns the last line of a message, shortened.
func lastLine(message string) string {
	const limit = 300
	lines := strings.Split(strings.TrimSpace(message), "\n")
	last := lines[len(lines)-1]
	if len(last) > limit {
		last = last[:limit] + "..."
	}
	return last
}

// failingReasons are the kubelet's reasons of waiting containers that do not start without intervention.
var failingReasons = []string{
	"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName",
	"CreateContainerConfigError", "CreateContainerError",
}
