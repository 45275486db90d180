package observed

import (
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/desired"
)

func exit(code int32, message string) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{ExitCode: code, Message: message}}
}

func waits(reason, message string) corev1.ContainerState {
	return corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: message}}
}

// TestProblem checks the messages that users get for pods that cannot run, in conditions and events.
func TestProblem(t *testing.T) {
	const server = desired.ServerContainer
	unschedulable := corev1.PodCondition{
		Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
		Message: "0/3 nodes are available: 3 Insufficient memory.",
	}
	for name, c := range map[string]struct {
		container corev1.ContainerStatus
		condition corev1.PodCondition
		want      string
	}{
		"starting":          {container: corev1.ContainerStatus{Name: server, State: waits("ContainerCreating", "")}},
		"running":           {container: corev1.ContainerStatus{Name: server}},
		"not scheduled yet": {condition: corev1.PodCondition{Type: corev1.PodScheduled, Status: corev1.ConditionFalse}},
		"unschedulable": {
			condition: unschedulable, want: "demo-0 is unschedulable: 0/3 nodes are available: 3 Insufficient memory.",
		},
		"image": {
			container: corev1.ContainerStatus{Name: server, State: waits("ErrImagePull", "pull\nmanifest unknown")},
			want:      "demo-0: ErrImagePull manifest unknown",
		},
		"missing Secret": {
			container: corev1.ContainerStatus{Name: server, State: waits("CreateContainerConfigError", `secret "s" not found`)},
			want:      `demo-0: CreateContainerConfigError secret "s" not found`,
		},
		"crash": {
			container: corev1.ContainerStatus{
				Name: server, State: waits("CrashLoopBackOff", "back-off 40s restarting failed container"),
				LastTerminationState: exit(1, "I0101 Starting\nError: listen: address in use\n"),
			},
			want: "demo-0: CrashLoopBackOff Error: listen: address in use",
		},
		"crash without a message": {
			container: corev1.ContainerStatus{
				Name: server, State: waits("CrashLoopBackOff", "back-off 40s"), LastTerminationState: exit(1, ""),
			},
			want: "demo-0: CrashLoopBackOff back-off 40s",
		},
		"container of a patch": {
			container: corev1.ContainerStatus{Name: "shipper", State: waits("ImagePullBackOff", "")},
			want:      "demo-0: ImagePullBackOff",
		},
		"damaged data": {
			container: corev1.ContainerStatus{Name: server, State: exit(desired.DamagedDataExitCode, "checksum mismatch")},
			want:      "demo-0 does not start, because its data is damaged: checksum mismatch",
		},
		"lost data": {
			container: corev1.ContainerStatus{
				Name: server, State: waits("CrashLoopBackOff", ""), LastTerminationState: exit(desired.LostDataExitCode, "empty"),
			},
			want: "demo-0 does not start without the data that it has voted with: empty",
		},
		"lost writes": {
			container: corev1.ContainerStatus{Name: server, State: exit(desired.LostWritesExitCode, "revision 7")},
			want:      "demo-0 has acknowledged writes that the other members lack: revision 7",
		},
	} {
		pod := memberPod("demo-0", "")
		pod.Status.Conditions = []corev1.PodCondition{c.condition}
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{c.container}
		if got := Problem(&pod); got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
		pod.DeletionTimestamp = &metav1.Time{Time: now}
		if got := Problem(&pod); got != "" {
			t.Errorf("%s: got %q while the pod terminates", name, got)
		}
	}
	ready := memberPod("demo-0", "")
	ready.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "shipper", State: waits("CrashLoopBackOff", "")}}
	if got := Problem(&ready); got != "" {
		t.Errorf("got %q of a ready pod", got)
	}
}

// TestServerTermination checks the reason for which an API server has ended, in the message of a member that keeps its
// volume.
func TestServerTermination(t *testing.T) {
	s := &State{Cluster: demo(), Pods: []corev1.Pod{memberPod("demo-0", "")}}
	for want, container := range map[string]corev1.ContainerStatus{
		"": {Name: "shipper", State: exit(desired.LostWritesExitCode, "revision 7")},
		"revision 7": {
			Name: desired.ServerContainer, State: exit(desired.LostWritesExitCode, "I0101 Starting\nrevision 7"),
		},
		"it has acknowledged writes that the other members lack": {
			Name: desired.ServerContainer, State: exit(desired.LostWritesExitCode, ""),
		},
	} {
		sidecar := corev1.ContainerStatus{Name: "sidecar", State: exit(1, "revision 8")}
		s.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{sidecar, container}
		if got := s.LostWrites("demo-0"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	long := strings.Repeat("x", 1000)
	s.Pods[0].Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: desired.ServerContainer, State: exit(1, "a\n"+long),
	}}
	if got := ServerTermination(&s.Pods[0]); got != long[:300]+"..." {
		t.Errorf("got %d bytes: %q", len(got), got)
	}
}

// TestShortenedMessage checks that a message is not shortened within a character. The API server would replace the rest
// of the character, so that the stored condition would always differ from the operator's.
func TestShortenedMessage(t *testing.T) {
	for length := 290; length <= 310; length++ {
		got := lastLine(strings.Repeat("x", length) + "überlänge")
		if !utf8.ValidString(got) || len(got) > 303 {
			t.Errorf("%d letters before: got %d bytes: %q", length, len(got), got)
		}
	}
	if got, want := lastLine(strings.Repeat("ü", 151)), strings.Repeat("ü", 150)+"..."; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestProblemOfAnInitContainer checks that a pod that waits for an init container of spec.patches has a problem.
func TestProblemOfAnInitContainer(t *testing.T) {
	pod := memberPod("demo-0", "")
	pod.Status.Conditions = nil
	pod.Status.InitContainerStatuses = []corev1.ContainerStatus{{
		Name: "fetch", State: waits("ImagePullBackOff", "unknown"),
	}}
	pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
		Name: desired.ServerContainer, State: waits("PodInitializing", ""),
	}}
	if got, want := Problem(&pod), "demo-0: ImagePullBackOff unknown"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
