package node

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// observation is what a Pod's status is made of.
type observation struct {
	now        metav1.Time
	podIP      string
	hostIP     string
	prepared   bool // address and volumes are there
	finished   bool // the Pod is being deleted and nothing of it runs
	initial    []corev1.ContainerStatus
	containers []corev1.ContainerStatus
}

// podStatus returns the status a kubelet would report. What others keep in it, such as conditions that are
// readiness gates, is taken from before.
func podStatus(pod *corev1.Pod, before corev1.PodStatus, o observation) corev1.PodStatus {
	status := *before.DeepCopy()
	status.ObservedGeneration = pod.Generation
	status.Phase = phase(pod.Spec.RestartPolicy, o)
	status.HostIP, status.HostIPs = o.hostIP, []corev1.HostIP{{IP: o.hostIP}}
	if o.podIP != "" {
		status.PodIP, status.PodIPs = o.podIP, []corev1.PodIP{{IP: o.podIP}}
	}
	status.InitContainerStatuses, status.ContainerStatuses = o.initial, o.containers
	if status.StartTime == nil {
		status.StartTime = &o.now
	}
	for _, condition := range conditions(pod, o) {
		setCondition(&status, condition, o.now)
	}
	return status
}

// phase sums up the containers.
func phase(policy corev1.RestartPolicy, o observation) corev1.PodPhase {
	if o.finished {
		policy = corev1.RestartPolicyNever
	}
	for _, status := range o.initial {
		if ended := status.State.Terminated; ended != nil && ended.ExitCode != 0 && policy == corev1.RestartPolicyNever {
			return corev1.PodFailed
		} else if ended == nil || ended.ExitCode != 0 {
			return corev1.PodPending
		}
	}
	var created, ended, failed int
	for _, status := range o.containers {
		if status.State.Waiting == nil || status.LastTerminationState.Terminated != nil {
			created++
		}
		if terminated := status.State.Terminated; terminated != nil {
			ended++
			if terminated.ExitCode != 0 {
				failed++
			}
		}
	}
	switch {
	case o.finished && ended == 0:
		return corev1.PodFailed
	case !o.finished && created < len(o.containers):
		return corev1.PodPending
	case ended < len(o.containers) && !o.finished, policy == corev1.RestartPolicyAlways:
		return corev1.PodRunning
	case failed == 0:
		return corev1.PodSucceeded
	case policy == corev1.RestartPolicyOnFailure:
		return corev1.PodRunning
	}
	return corev1.PodFailed
}

func conditions(pod *corev1.Pod, o observation) []corev1.PodCondition {
	initialized := condition(corev1.PodInitialized, !slices.ContainsFunc(o.initial, notComplete), "ContainersNotInitialized")
	containers := condition(corev1.ContainersReady, !slices.ContainsFunc(o.containers, notReady), "ContainersNotReady")
	ready := condition(corev1.PodReady, containers.Status == corev1.ConditionTrue && gatesOpen(pod), "ContainersNotReady")
	if containers.Status == corev1.ConditionTrue && ready.Status == corev1.ConditionFalse {
		ready.Reason = "ReadinessGatesNotReady"
	}
	if ended := phase(pod.Spec.RestartPolicy, o); ended == corev1.PodSucceeded || ended == corev1.PodFailed {
		containers.Reason, ready.Reason = "PodCompleted", "PodCompleted"
	}
	return []corev1.PodCondition{
		condition(corev1.PodReadyToStartContainers, o.prepared && !o.finished, ""),
		initialized, ready, containers, condition(corev1.PodScheduled, true, ""),
	}
}

func condition(kind corev1.PodConditionType, holds bool, reason string) corev1.PodCondition {
	if holds {
		return corev1.PodCondition{Type: kind, Status: corev1.ConditionTrue}
	}
	return corev1.PodCondition{Type: kind, Status: corev1.ConditionFalse, Reason: reason}
}

func notComplete(status corev1.ContainerStatus) bool {
	return status.State.Terminated == nil || status.State.Terminated.ExitCode != 0
}

func notReady(status corev1.ContainerStatus) bool { return !status.Ready }

func gatesOpen(pod *corev1.Pod) bool {
	for _, gate := range pod.Spec.ReadinessGates {
		open := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == gate.ConditionType && c.Status == corev1.ConditionTrue
		})
		if !open {
			return false
		}
	}
	return true
}

// setCondition replaces a condition; the time of its transition changes with its status only.
func setCondition(status *corev1.PodStatus, condition corev1.PodCondition, now metav1.Time) {
	condition.LastTransitionTime = now
	for i, before := range status.Conditions {
		if before.Type != condition.Type {
			continue
		}
		if before.Status == condition.Status {
			condition.LastTransitionTime = before.LastTransitionTime
		}
		condition.ObservedGeneration = before.ObservedGeneration
		status.Conditions[i] = condition
		return
	}
	status.Conditions = append(status.Conditions, condition)
}
