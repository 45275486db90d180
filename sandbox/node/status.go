package node

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// observation contains the facts from which a worker computes the status of its Pod.
type observation struct {
	now        metav1.Time
	podIP      string
	hostIP     string
	prepared   bool // the address is allocated and the volumes exist
	finished   bool // the Pod is being deleted and its processes have exited
	initial    []corev1.ContainerStatus
	containers []corev1.ContainerStatus
}

// podStatus returns the status that a kubelet would report. It keeps conditions that other controllers set, such as
// conditions of readiness gates.
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

// summary counts the containers of a Pod by state, to determine the Pod's phase.
type summary struct {
	observation
	policy         corev1.RestartPolicy // Never for a finished Pod
	initIncomplete bool                 // an init container has not succeeded
	initFailed     bool                 // an init container has failed and is not restarted
	created        int                  // containers that have run at least once
	terminated     int
	failed         int // terminated containers with an exit code other than 0
}

// phaseRules determine the phase of a Pod, like the kubelet's getPhase. The first rule that applies determines the
// phase.
var phaseRules = []struct {
	rule    string
	applies func(s *summary) bool
	phase   corev1.PodPhase
}{
	{"an init container failed and is not restarted", func(s *summary) bool { return s.initFailed }, corev1.PodFailed},
	{"an init container has not succeeded", func(s *summary) bool { return s.initIncomplete }, corev1.PodPending},
	{"deleted before a container ran", func(s *summary) bool { return s.finished && s.terminated == 0 }, corev1.PodFailed},
	{
		"a container has not run", func(s *summary) bool {
			return !s.finished && s.created < len(s.containers)
		}, corev1.PodPending,
	},
	{
		"a container runs", func(s *summary) bool {
			return !s.finished && s.terminated < len(s.containers)
		}, corev1.PodRunning,
	},
	{"all are restarted", func(s *summary) bool { return s.policy == corev1.RestartPolicyAlways }, corev1.PodRunning},
	{"all succeeded", func(s *summary) bool { return s.failed == 0 }, corev1.PodSucceeded},
	{
		"failed ones are restarted", func(s *summary) bool {
			return s.policy == corev1.RestartPolicyOnFailure
		}, corev1.PodRunning,
	},
	{"a container failed", func(*summary) bool { return true }, corev1.PodFailed},
}

// phase returns the phase of a Pod.
func phase(policy corev1.RestartPolicy, o observation) corev1.PodPhase {
	s := summarize(policy, o)
	for _, r := range phaseRules {
		if r.applies(s) {
			return r.phase
		}
	}
	return corev1.PodUnknown
}

func summarize(policy corev1.RestartPolicy, o observation) *summary {
	if o.finished {
		policy = corev1.RestartPolicyNever
	}
	s := &summary{observation: o, policy: policy}
	if i := slices.IndexFunc(o.initial, notComplete); i >= 0 {
		s.initIncomplete = true
		s.initFailed = o.initial[i].State.Terminated != nil && policy == corev1.RestartPolicyNever
	}
	for _, status := range o.containers {
		if status.State.Waiting == nil || status.LastTerminationState.Terminated != nil {
			s.created++
		}
		if terminated := status.State.Terminated; terminated != nil {
			s.terminated++
			if terminated.ExitCode != 0 {
				s.failed++
			}
		}
	}
	return s
}

func conditions(pod *corev1.Pod, o observation) []corev1.PodCondition {
	initialized := condition(corev1.PodInitialized, !slices.ContainsFunc(o.initial, notComplete),
		"ContainersNotInitialized")
	containers := condition(corev1.ContainersReady, !slices.ContainsFunc(o.containers, notReady), "ContainersNotReady")
	ready := condition(corev1.PodReady, containers.Status == corev1.ConditionTrue && readinessGatesTrue(pod),
		"ContainersNotReady")
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

func readinessGatesTrue(pod *corev1.Pod) bool {
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

// setCondition adds or replaces a condition. The transition time changes only with the condition's status.
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
