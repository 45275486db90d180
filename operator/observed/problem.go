package observed

import (
	"cmp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/desired"
)

// Problem returns why a pod cannot run, as a sentence that begins with the name of the pod, or "".
func Problem(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil || Ready(pod) {
		return ""
	}
	switch {
	case HasLostWrites(pod):
		return strings.TrimSpace(pod.Name + " has acknowledged writes that the other members lack: " + ServerTermination(pod))
	case Refuses(pod):
		return strings.TrimSpace(pod.Name + " does not start without the data that it has voted with: " +
			ServerTermination(pod))
	case Damaged(pod):
		return strings.TrimSpace(pod.Name + " does not start, because its data is damaged: " + ServerTermination(pod))
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return pod.Name + " is unschedulable: " + c.Message
		}
	}
	for _, c := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		waiting := c.State.Waiting
		if waiting == nil {
			continue
		}
		if slices.Contains(failingReasons, waiting.Reason) {
			return strings.TrimSpace(pod.Name + ": " + waiting.Reason + " " +
				cmp.Or(terminationMessage(c), lastLine(waiting.Message)))
		}
	}
	return ""
}

// ServerTermination returns the last line of the message of the last termination of a pod's API server, or "".
func ServerTermination(pod *corev1.Pod) string {
	for _, c := range pod.Status.ContainerStatuses {
		if terminated := cmp.Or(c.State.Terminated, c.LastTerminationState.Terminated); c.Name == desired.ServerContainer &&
			terminated != nil {
			return lastLine(terminated.Message)
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

// lastLine returns the last line of a message, shortened to at most 300 bytes and "...".
func lastLine(message string) string {
	const limit = 300
	lines := strings.Split(strings.TrimSpace(message), "\n")
	last := lines[len(lines)-1]
	if len(last) > limit {
		last = strings.ToValidUTF8(last[:limit], "") + "..." // the limit may be within a character
	}
	return last
}

// failingReasons are the kubelet's reasons for waiting containers that do not start without intervention.
var failingReasons = []string{
	"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName",
	"CreateContainerConfigError", "CreateContainerError",
}
