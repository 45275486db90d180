package overview

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// problemKind is the kind of an API server's problem, which determines the next step.
type problemKind int

const (
	noProblem     problemKind = iota
	starting                  // needs only time
	noQuorum                  // runs, and waits for the quorum of etcd
	noPod                     // has no pod, because the operator has not created it yet
	lostData                  // does not start, because its volume lacks its data; the operator replaces it
	lostWrites                // has stopped, because it has acknowledged writes that the other members lack
	crashing                  // exits for another reason
	blocked                   // cannot be started, for example because its image does not exist
	unschedulable             // has no node that can run it
	down                      // runs, but is not healthy or does not respond
)

// problem is the reason why an API server is not ready. The text continues a sentence that begins with the name of the
// API server.
type problem struct {
	kind problemKind
	text string
}

// isDown reports whether the problem lasts until the operator or an administrator repairs the API server.
func (p problem) isDown() bool { return p.kind > noQuorum }

// blockedReasons are the kubelet's reasons for waiting containers that cannot start until a user corrects something.
var blockedReasons = []string{
	"ImagePullBackOff", "ErrImagePull", "ErrImageNeverPull", "InvalidImageName",
	"CreateContainerConfigError", "CreateContainerError",
}

// podProblem returns the problem of a pod that its status in the hosting cluster shows.
func podProblem(pod *corev1.Pod) problem {
	if pod.DeletionTimestamp != nil {
		return problem{starting, "is being stopped"}
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return problem{unschedulable, "cannot be scheduled: " + shortened(c.Message)}
		}
	}
	for _, status := range pod.Status.ContainerStatuses {
		if p := containerProblem(status); p.kind != noProblem {
			return p
		}
	}
	switch {
	case Ready(pod):
		return problem{}
	case pod.Status.Phase != corev1.PodRunning:
		return problem{starting, "is " + cmp.Or(string(pod.Status.Phase), "being created")}
	}
	return problem{starting, "is not ready"}
}

func containerProblem(status corev1.ContainerStatus) problem {
	ended := cmp.Or(status.State.Terminated, status.LastTerminationState.Terminated)
	server := status.Name == desired.ServerContainer && !status.Ready && ended != nil
	switch {
	case server && ended.ExitCode == desired.LostDataExitCode:
		return problem{lostData, "does not start, because its volume does not have the data of its etcd member (exit code 4)"}
	case server && ended.ExitCode == desired.LostWritesExitCode:
		return problem{
			lostWrites, "has stopped, because it has acknowledged writes that the other members lack (exit code 5)",
		}
	case server && ended.ExitCode == desired.DamagedDataExitCode:
		return problem{lostData, "does not start, because the data of its etcd member is damaged (exit code 3)"}
	case status.State.Waiting == nil:
		return problem{}
	case slices.Contains(blockedReasons, status.State.Waiting.Reason):
		return problem{
			blocked, fmt.Sprintf("cannot start: %s: %s", status.State.Waiting.Reason, shortened(status.State.Waiting.Message)),
		}
	case status.State.Waiting.Reason != "CrashLoopBackOff":
		return problem{}
	case ended == nil:
		return problem{crashing, "exits again and again"}
	case ended.Message == "":
		return problem{crashing, fmt.Sprintf("exits again and again with code %d", ended.ExitCode)}
	}
	return problem{
		crashing, fmt.Sprintf("exits again and again with code %d: %s", ended.ExitCode, shortened(ended.Message)),
	}
}

// shortened returns the last line of a message, limited to a few lines of a terminal.
func shortened(message string) string {
	const limit = 200
	message = strings.TrimSpace(message)
	runes := []rune(message[strings.LastIndexByte(message, '\n')+1:])
	if len(runes) > limit {
		return string(runes[:limit]) + "..."
	}
	return string(runes)
}

// replicaProblem returns the problem of an API server. member is nil if the API server has no etcd member; pod is nil
// if it has no pod or the pods are unknown. Observations of this command take precedence over those that the operator
// has stored in the status.
func (in *Input) replicaProblem(member *v1alpha1.MemberStatus, pod *corev1.Pod) problem {
	if in.Cluster.Hibernated() {
		return problem{}
	}
	p := problem{}
	switch {
	case pod != nil:
		p = podProblem(pod)
	case !in.PodsUnknown:
		return problem{noPod, "has no pod"}
	}
	if p.isDown() {
		return p
	}
	if failure := in.failure(pod); failure != "" && p.text != "is being stopped" {
		return problem{down, failure}
	}
	switch {
	case member == nil:
		return p
	case p.kind != noProblem && withoutQuorum(in.Cluster):
		return problem{noQuorum, "waits for the quorum of etcd"}
	case p.kind == noProblem && withoutQuorum(in.Cluster):
		return problem{noQuorum, "runs, but etcd does not respond to the operator"}
	case member.UnhealthySince != nil:
		return problem{down, "has an unhealthy etcd member"}
	case p.kind == noProblem && !member.Ready:
		return problem{starting, "is not ready"}
	}
	return p
}

// failure returns why the API server in a pod did not respond to this command, or "" if it responded.
func (in *Input) failure(pod *corev1.Pod) string {
	if pod == nil {
		return ""
	}
	return in.Failures[pod.Name]
}

// withoutQuorum reports whether etcd has lost its quorum or does not respond to the operator.
func withoutQuorum(c *v1alpha1.ApiServerCluster) bool {
	quorum := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.EtcdQuorum)
	return quorum != nil &&
		(quorum.Status == metav1.ConditionFalse && quorum.Reason == v1alpha1.ReasonQuorumLost || unreachable(c))
}

// unreachable reports whether etcd does not respond to the operator, but not yet for so long that the operator
// considers the quorum lost.
func unreachable(c *v1alpha1.ApiServerCluster) bool {
	quorum := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.EtcdQuorum)
	return quorum != nil && quorum.Status == metav1.ConditionUnknown && quorum.Reason == v1alpha1.ReasonEtcdUnreachable
}

// downReplicas returns the API servers whose problem needs a repair.
func downReplicas(o *Overview) []Replica {
	var list []Replica
	for _, r := range o.Replicas {
		if r.problem.isDown() {
			list = append(list, r)
		}
	}
	return list
}

// sentences returns the problems of API servers in the form "demo-0 does not respond, demo-1 has no pod".
func sentences(list []Replica) string {
	parts := make([]string, 0, len(list))
	for _, r := range list {
		parts = append(parts, r.Name+" "+r.problem.text)
	}
	return strings.Join(parts, ", ")
}
