package node

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func ended(code int32) corev1.ContainerStatus {
	return corev1.ContainerStatus{
		State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code}},
	}
}

func TestPhase(t *testing.T) {
	running := corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
	waiting := corev1.ContainerStatus{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{}}}
	backingOff := waiting
	backingOff.LastTerminationState = ended(1).State
	type list = []corev1.ContainerStatus
	always, onFailure, never := corev1.RestartPolicyAlways, corev1.RestartPolicyOnFailure, corev1.RestartPolicyNever
	tests := []struct {
		name       string
		policy     corev1.RestartPolicy
		initial    list
		containers list
		finished   bool
		want       corev1.PodPhase
	}{
		{"nothing started", always, nil, list{waiting}, false, corev1.PodPending},
		{"one of two started", always, nil, list{running, waiting}, false, corev1.PodPending},
		{"running", always, nil, list{running, running}, false, corev1.PodRunning},
		{"backing off", always, nil, list{backingOff}, false, corev1.PodRunning},
		{"init container runs", always, list{running}, list{waiting}, false, corev1.PodPending},
		{"init container failed", never, list{ended(1)}, list{waiting}, false, corev1.PodFailed},
		{"init container is retried", onFailure, list{ended(1)}, list{waiting}, false, corev1.PodPending},
		{"init container succeeded", always, list{ended(0)}, list{running}, false, corev1.PodRunning},
		{"succeeded", never, nil, list{ended(0), ended(0)}, false, corev1.PodSucceeded},
		{"failed", never, nil, list{ended(0), ended(3)}, false, corev1.PodFailed},
		{"one of two terminated", never, nil, list{ended(3), running}, false, corev1.PodRunning},
		{"deleted", always, nil, list{ended(0)}, true, corev1.PodSucceeded},
		{"killed", always, nil, list{ended(137)}, true, corev1.PodFailed},
		{"deleted before it ran", always, nil, list{waiting}, true, corev1.PodFailed},
	}
	for _, test := range tests {
		o := observation{initial: test.initial, containers: test.containers, finished: test.finished}
		if got := phase(test.policy, o); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

func TestPodStatusKeepsForeignConditions(t *testing.T) {
	early, late := metav1.NewTime(time.Unix(100, 0)), metav1.NewTime(time.Unix(200, 0))
	gate := corev1.PodCondition{Type: "example.org/gate", Status: corev1.ConditionFalse}
	pod := &corev1.Pod{Spec: corev1.PodSpec{ReadinessGates: []corev1.PodReadinessGate{{ConditionType: gate.Type}}}}
	pod.Status.Conditions = []corev1.PodCondition{gate}
	o := observation{
		now: early, podIP: "127.9.64.1", prepared: true, containers: []corev1.ContainerStatus{{
			Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		}},
	}
	status := podStatus(pod, pod.Status, o)
	pod.Status = status
	if conditionOf(pod, gate.Type) != corev1.ConditionFalse ||
		conditionOf(pod, corev1.PodReady) != corev1.ConditionFalse ||
		conditionOf(pod, corev1.ContainersReady) != corev1.ConditionTrue {
		t.Errorf("with a false readiness gate: %+v", status.Conditions)
	}
	pod.Status.Conditions[0].Status = corev1.ConditionTrue
	o.now = late
	status = podStatus(pod, pod.Status, o)
	for _, condition := range status.Conditions {
		want := early
		if condition.Type == corev1.PodReady {
			want = late
		}
		if condition.Type != gate.Type && !condition.LastTransitionTime.Equal(&want) {
			t.Errorf("transition time of %s: %s, want %s", condition.Type, condition.LastTransitionTime, want)
		}
	}
	if !status.StartTime.Equal(&early) || status.Phase != corev1.PodRunning {
		t.Errorf("got %+v", status)
	}
}

func TestUnitRemembersEarlierRuns(t *testing.T) {
	spec := &corev1.Container{Name: "main"}
	known := []corev1.ContainerStatus{{
		Name: "main", ContainerID: "process://1", RestartCount: 4,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
	}}
	status := newUnit(spec, false, "", known).status()
	if status.RestartCount != 4 || status.LastTerminationState.Terminated == nil || status.State.Waiting == nil {
		t.Errorf("got %+v", status)
	}
	known[0] = status
	if again := newUnit(spec, false, "", known).status(); again.RestartCount != 4 ||
		again.LastTerminationState.Terminated == nil {
		t.Errorf("status of the second agent: %+v", again)
	}
	if fresh := newUnit(spec, false, "", nil).status(); fresh.RestartCount != 0 ||
		fresh.LastTerminationState.Terminated != nil {
		t.Errorf("got %+v", fresh)
	}
}

func TestGrace(t *testing.T) {
	long, short := int64(60), int64(5)
	pod := &corev1.Pod{Spec: corev1.PodSpec{TerminationGracePeriodSeconds: &long}}
	if got := gracePeriod(pod, false); got != time.Minute {
		t.Errorf("grace period of the spec: %s", got)
	}
	pod.DeletionGracePeriodSeconds = &short
	if got := gracePeriod(pod, false); got != 5*time.Second {
		t.Errorf("grace period of the deletion: %s", got)
	}
	if got := gracePeriod(pod, true); got != removedGracePeriod {
		t.Errorf("grace period after a forced deletion: %s", got)
	}
}
