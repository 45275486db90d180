package status

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
)

// TestMembersWithoutTheirDataAreReported: the status never says that there are no problems while a member has stopped
// because of its data, whether its container waits for a restart or not.
func TestMembersWithoutTheirDataAreReported(t *testing.T) {
	exited := func(code int32, waiting bool) corev1.Pod {
		terminated := &corev1.ContainerStateTerminated{ExitCode: code, Message: "log\nrevision 7 is known, 5 is found."}
		status := corev1.ContainerStatus{Name: desired.ServerContainer, State: corev1.ContainerState{Terminated: terminated}}
		if waiting {
			status.State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}
			status.LastTerminationState.Terminated = terminated
		}
		return corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "demo-0"}, Status: corev1.PodStatus{
				ContainerStatuses: []corev1.ContainerStatus{status},
			},
		}
	}
	annotated := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{
		Name: "demo-0", Annotations: map[string]string{desired.LostWritesAnnotation: "revision 7 is known, 5 is found"},
	}}
	plain := corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "demo-0"}}
	replace := "revision 7 is known, 5 is found. Nothing of it is deleted. To continue without these writes, set the " +
		"annotation quorate.dev/replace-members=demo-0"
	for name, c := range map[string]struct {
		pod           corev1.Pod
		claim         corev1.PersistentVolumeClaim
		healthy       bool
		reason, words string
	}{
		"damaged": {
			exited(desired.DamagedDataExitCode, false), plain, false, v1alpha1.ReasonPodsFailing,
			"its data is damaged: revision 7",
		},
		"damaged, waits": {
			exited(desired.DamagedDataExitCode, true), plain, false, v1alpha1.ReasonPodsFailing,
			"its data is damaged: revision 7",
		},
		"refuses": {
			exited(desired.LostDataExitCode, false), plain, false, v1alpha1.ReasonPodsFailing,
			"the data that it has voted with: revision 7",
		},
		"refuses, waits": {
			exited(desired.LostDataExitCode, true), plain, false, v1alpha1.ReasonPodsFailing,
			"the data that it has voted with: revision 7",
		},
		"lost writes": {
			exited(desired.LostWritesExitCode, false), plain, false, v1alpha1.ReasonAcknowledgedWritesLost,
			"demo-0 has stopped: " + replace,
		},
		"lost writes, waits": {
			exited(desired.LostWritesExitCode, true), plain, false, v1alpha1.ReasonAcknowledgedWritesLost, replace,
		},
		"lost writes, without a pod":       {corev1.Pod{}, annotated, false, v1alpha1.ReasonAcknowledgedWritesLost, replace},
		"lost writes, then recovered data": {corev1.Pod{}, annotated, true, v1alpha1.ReasonAsExpected, "No problems"},
	} {
		cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo"}}
		s := &observed.State{
			Cluster: cluster, Claims: []corev1.PersistentVolumeClaim{c.claim},
			Members: []etcd.Member{{Name: "demo-0", Healthy: c.healthy}},
		}
		if c.pod.Name != "" {
			s.Pods = []corev1.Pod{c.pod}
		}
		got := degraded(cluster, Input{State: s, Now: time.Now()})
		if got.Reason != c.reason || !strings.Contains(got.Message, c.words) {
			t.Errorf("%s: Degraded is %s %s: %s", name, got.Status, got.Reason, got.Message)
		}
	}
}

// refusing returns a pod whose member refuses the data in its volume.
func refusing(name string) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{
			Name: desired.ServerContainer,
			LastTerminationState: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: desired.LostDataExitCode},
			},
		}}},
	}
}
