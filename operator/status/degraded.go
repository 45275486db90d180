package status

import (
	"cmp"
	"errors"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/observed"
)

// secretLost is the reason of conditions while nothing is changed because a Secret in use is missing.
const secretLost = "SecretLost"

// degraded is true when a problem exists that the operator cannot repair, or has not repaired yet.
func degraded(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	switch {
	case in.Lost != nil:
		return condition(v1alpha1.Degraded, true, secretLost, "%s", oneLine(in.Lost))
	case in.Invalid != nil:
		return condition(v1alpha1.Degraded, true, "InvalidSpec", "%s", oneLine(in.Invalid))
	case len(in.Errors) > 0:
		return condition(v1alpha1.Degraded, true, "ReconcileFailed", "%s", oneLine(errors.Join(in.Errors...)))
	case in.State == nil:
		return unknown(v1alpha1.Degraded)
	case cluster.Restoring() && cluster.Status.Restore != nil && cluster.Status.Restore.Reason != "Restoring":
		return condition(v1alpha1.Degraded, true, cluster.Status.Restore.Reason, "%s", cluster.Status.Restore.Message)
	case cluster.Recovering(v1alpha1.RecoveryStopping, v1alpha1.RecoveryRestoring, v1alpha1.RecoveryStarting):
		return condition(v1alpha1.Degraded, true, "Recovering", "etcd is recovered with the data of %s: %s",
			cluster.Status.Recovery.Source(), cmp.Or(cluster.Status.Recovery.Message, string(cluster.Status.Recovery.Stage)))
	case !cluster.ExternalEtcd() && in.State.QuorumLost(in.Now):
		return condition(v1alpha1.Degraded, true, observed.QuorumLostReason,
			"etcd has no quorum; the operator only recreates missing pods until it is restored, or spec.recovery requests a recovery")
	case in.ConfigurationErr != nil:
		return condition(v1alpha1.Degraded, true, "InvalidConfiguration",
			"The last valid files stay in use: %s", oneLine(in.ConfigurationErr))
	}
	for _, m := range in.State.Members {
		if len(m.Alarms) > 0 {
			return condition(v1alpha1.Degraded, true, "EtcdAlarm", "%s: %s", m.Name, strings.Join(m.Alarms, "; "))
		}
	}
	var problems []string
	for i := range in.State.Pods {
		if problem := podProblem(&in.State.Pods[i]); problem != "" {
			problems = append(problems, problem)
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return condition(v1alpha1.Degraded, true, "PodsFailing", "%s", strings.Join(problems, "; "))
	}
	return condition(v1alpha1.Degraded, false, "AsExpected", "No problems detected")
}

// podProblem returns why a pod cannot run, or "".
func podProblem(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil || observed.Ready(pod) {
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
			return strings.TrimSpace(pod.Name + ": " + waiting.Reason + " " + terminationMessage(c))
		}
	}
	return ""
}

// terminationMessage returns the last line of the message of a container's last termination, or "".
func terminationMessage(c corev1.ContainerStatus) string {
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

// failingReasons are the kubelet's reasons of waiting containers that do not start without intervention.
var failingReasons = []string{
	"CrashLoopBackOff", "ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName",
	"CreateContainerConfigError", "CreateContainerError",
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
