// Package observed reads the state of one cluster into one value: its pods and claims, not from a cache, and its etcd
// members. All decisions of a reconciliation are based on that value, which does not change once it is read.
package observed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
)

const (
	// JoinTimeout is the time for a new member to become a voter.
	JoinTimeout = 10 * time.Minute
	// QuorumLossTimeout is the time without a response after which the quorum counts as lost.
	QuorumLossTimeout = 10 * time.Second
)

// ErrNotRead is the initial value of State.EtcdErr. It says nothing about the quorum.
var ErrNotRead = errors.New("the etcd members were not read")

// QuorumLostReason is the reason of condition EtcdQuorum while the quorum is lost.
const QuorumLostReason = v1alpha1.ReasonQuorumLost

// State is the observed state of one cluster. It is immutable.
type State struct {
	Cluster *v1alpha1.ApiServerCluster
	Image   string // effective image of the spec
	Pods    []corev1.Pod
	Claims  []corev1.PersistentVolumeClaim
	Members []etcd.Member
	EtcdErr error // why Members is unknown; nil if a quorum responded
	// Survivors are the last known members and their data while the quorum is lost.
	Survivors []etcd.Survivor
	// Acknowledged are states that members are known to have reached, by ID. It has what this process has observed.
	Acknowledged map[uint64]etcd.Acknowledged
}

// Read lists the pods and claims that a cluster owns. The reader must not be a cache. The etcd members are unknown.
func Read(
	ctx context.Context, reader client.Reader, cluster *v1alpha1.ApiServerCluster, image string,
) (*State, error) {
	options := []client.ListOption{client.InNamespace(cluster.Namespace), client.MatchingLabels(desired.Selector(cluster))}
	var pods corev1.PodList
	if err := reader.List(ctx, &pods, options...); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	var claims corev1.PersistentVolumeClaimList
	if err := reader.List(ctx, &claims, options...); err != nil {
		return nil, fmt.Errorf("listing persistent volume claims: %w", err)
	}
	return &State{
		Cluster: cluster, Image: image, EtcdErr: ErrNotRead,
		Pods: slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
			return !metav1.IsControlledBy(&pod, cluster)
		}),
		Claims: slices.DeleteFunc(claims.Items, func(claim corev1.PersistentVolumeClaim) bool {
			return !metav1.IsControlledBy(&claim, cluster)
		}),
	}, nil
}

// WithMembers returns a copy of the state with the result of reading the etcd members.
func (s *State) WithMembers(members []etcd.Member, err error) *State {
	next := *s
	next.Members, next.EtcdErr = members, err
	return &next
}

// WithSurvivors returns a copy of the state with the data of the members while the quorum is lost.
func (s *State) WithSurvivors(survivors []etcd.Survivor) *State {
	next := *s
	next.Survivors = survivors
	return &next
}

// WithAcknowledged returns a copy of the state with the states that members are known to have reached.
func (s *State) WithAcknowledged(acknowledged map[uint64]etcd.Acknowledged) *State {
	next := *s
	next.Acknowledged = acknowledged
	return &next
}

// Endpoints returns the running members that have an address.
func (s *State) Endpoints() []etcd.Endpoint {
	var endpoints []etcd.Endpoint
	for i := range s.Pods {
		if pod := &s.Pods[i]; RunsMember(pod) && pod.Status.PodIP != "" && !Terminated(pod) {
			endpoints = append(endpoints, etcd.Endpoint{Name: pod.Name, Address: pod.Status.PodIP})
		}
	}
	return endpoints
}

// Pod returns a pod by name, or nil.
func (s *State) Pod(name string) *corev1.Pod {
	for i := range s.Pods {
		if s.Pods[i].Name == name {
			return &s.Pods[i]
		}
	}
	return nil
}

// Claim returns a claim by name, or nil.
func (s *State) Claim(name string) *corev1.PersistentVolumeClaim {
	for i := range s.Claims {
		if s.Claims[i].Name == name {
			return &s.Claims[i]
		}
	}
	return nil
}

// Member returns a member by name, or nil.
func (s *State) Member(name string) *etcd.Member {
	for i := range s.Members {
		if s.Members[i].Name == name {
			return &s.Members[i]
		}
	}
	return nil
}

// Voters returns the number of voters and of healthy voters.
func (s *State) Voters() (all, healthy int) {
	for _, m := range s.Members {
		if m.Learner {
			continue
		}
		all++
		if m.Healthy {
			healthy++
		}
	}
	return all, healthy
}

// ReadyReplicas returns the number of ready API servers.
func (s *State) ReadyReplicas() int {
	n := 0
	for i := range s.Pods {
		if Ready(&s.Pods[i]) {
			n++
		}
	}
	return n
}

// Unreachable reports whether etcd was read and no quorum responded.
func (s *State) Unreachable() bool { return errors.Is(s.EtcdErr, etcd.ErrUnreachable) }

// QuorumLost reports whether a bootstrapped etcd has not responded for QuorumLossTimeout, according to the stored
// condition EtcdQuorum. An etcd that is not bootstrapped has lost its quorum if so many initial members refuse their data that
// the others are no quorum. A hibernated cluster has not lost its quorum.
func (s *State) QuorumLost(now time.Time) bool {
	if !s.Unreachable() || s.Cluster.Hibernated() {
		return false
	}
	if !s.Cluster.Bootstrapped() {
		return s.initialMembersRefuse()
	}
	c := meta.FindStatusCondition(s.Cluster.Status.Conditions, v1alpha1.EtcdQuorum)
	if c == nil || c.Reason == QuorumLostReason {
		return c != nil
	}
	return c.Status == metav1.ConditionUnknown && c.Reason != v1alpha1.ReasonNotObserved && now.Sub(c.LastTransitionTime.Time) >= QuorumLossTimeout
}

// MemberRefuses reports whether a member does not start because its volume does not have the data that it has voted with. No
// change of the pod template returns the data.
func (s *State) MemberRefuses(m etcd.Member) bool {
	pod := s.Pod(m.Name)
	return !m.Healthy && pod != nil && Refuses(pod)
}

// MemberLost reports whether a member has been unhealthy for too long, or cannot start because its data is damaged, while
// another member with the same pod template is healthy. Without a healthy one, the template may be the cause, and a new
// member would fail in the same way.
func (s *State) MemberLost(m etcd.Member, now time.Time) bool {
	since, pod := s.UnhealthySince(m.Name), s.Pod(m.Name)
	if m.Healthy || pod == nil || m.Learner && !Damaged(pod) { // learners have a timeout of their own
		return false
	}
	if !Damaged(pod) && (since == nil || now.Sub(since.Time) <= s.Cluster.ReplaceUnhealthyAfter()) {
		return false
	}
	for _, other := range s.Members {
		reference := s.Pod(other.Name)
		if other.Healthy && reference != nil && sameTemplate(reference, pod) {
			return true
		}
	}
	return false
}

// initialMembersRefuse reports whether so many initial members refuse their data that the others are no quorum.
func (s *State) initialMembersRefuse() bool {
	if s.Cluster.Status.Membership == nil {
		return false
	}
	initial, refusing := s.Cluster.Status.Membership.InitialMembers, 0
	for _, name := range initial {
		if pod := s.Pod(name); pod != nil && Refuses(pod) {
			refusing++
		}
	}
	return refusing > 0 && len(initial)-refusing < len(initial)/2+1
}

// Damaged reports whether the member of a pod has exited because its data is damaged, and has not started since.
func Damaged(pod *corev1.Pod) bool { return exitedWith(pod, desired.DamagedDataExitCode) }

// Refuses reports whether the member of a pod has exited because its volume does not have the data that the member has voted
// with, and has not started since.
func Refuses(pod *corev1.Pod) bool { return exitedWith(pod, desired.LostDataExitCode) }

func exitedWith(pod *corev1.Pod, code int32) bool {
	for _, container := range pod.Status.ContainerStatuses {
		ended := cmp.Or(container.State.Terminated, container.LastTerminationState.Terminated)
		if container.Name == desired.ServerContainer && !container.Ready && ended != nil && ended.ExitCode == code {
			return true
		}
	}
	return false
}

func sameTemplate(a, b *corev1.Pod) bool {
	return a.Annotations[desired.ServerHashAnnotation] == b.Annotations[desired.ServerHashAnnotation] &&
		a.Annotations[desired.EtcdHashAnnotation] == b.Annotations[desired.EtcdHashAnnotation]
}

// UnhealthySince returns the time in the status at which a member was first observed unhealthy, or nil.
func (s *State) UnhealthySince(name string) *metav1.Time {
	for _, m := range s.Cluster.Status.Members {
		if m.Name == name {
			return m.UnhealthySince
		}
	}
	return nil
}

// RunsMember reports whether a pod runs an etcd member, even if its labels were removed: its volumes are immutable.
func RunsMember(pod *corev1.Pod) bool {
	if pod.Labels[desired.RoleLabel] == desired.RoleMember {
		return true
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(volume corev1.Volume) bool {
		return volume.PersistentVolumeClaim != nil && volume.PersistentVolumeClaim.ClaimName == pod.Name
	})
}

// Ready reports whether a pod is ready and not terminating.
func Ready(pod *corev1.Pod) bool {
	if pod.DeletionTimestamp != nil {
		return false
	}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// Terminated reports whether all containers of a pod have terminated and will not be restarted.
func Terminated(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// MemberID returns an ID in the notation of etcdctl.
func MemberID(id uint64) string { return strconv.FormatUint(id, 16) }
