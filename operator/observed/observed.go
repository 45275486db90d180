// Package observed reads the state of one cluster into one value, and answers questions about that value.
//
// # Data structures
//
// State is the knowledge of one reconciliation: the ApiServerCluster as it was read, the pods and claims that it owns,
// and the members of its etcd with their status. It is read in parts. Read lists pods and claims, with an uncached
// reader, because decisions about etcd members that are based on an outdated list can lose the quorum. WithMembers,
// WithSurvivors and WithAcknowledged return copies with the state of etcd, which package members of the reconciler
// reads with package etcd. Credentials and Encryptions probe the running replicas and return one result per pod; they
// are not part of State, because only rotations need them.
//
// # Invariants
//
//   - A State contains only objects that the cluster owns (desired.Owns). Pods and claims of other owners that have the
//     labels of the cluster are never considered, and so never deleted.
//   - Members is complete or EtcdErr is not nil. The list is linearizable: a quorum has confirmed it. Members of an
//     etcd without a quorum are not known; Survivors then has the state of the members in the stored status, each
//     according to itself.
//   - ErrNotRead and an error other than etcd.ErrUnreachable say nothing about the quorum. Only Unreachable means that
//     a list of members was requested and no quorum responded.
//   - Timeouts that span reconciliations, such as QuorumLossTimeout and the age of a member's problem, are computed
//     from times in the stored status and not from the operator's memory, so that they survive a restart of the
//     operator. Acknowledged is the exception: it has what this process has observed, and package volumes combines it
//     with the status.
//   - The methods of State do not modify it. Packages volumes and retention are the only writers: after they have
//     written labels, annotations or owner references of a claim, they change Claims in place, so that State stays
//     equal to the stored objects.
//
// # What may block
//
// Read sends two LIST requests to the hosting cluster. Version, Credentials, Encryptions and WithoutEtcd connect to
// pods: they probe all pods concurrently, and each probe ends after versionTimeout or probeTimeout. All other functions
// compute results from a State.
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
	// JoinTimeout is the time in which a new member has to become a voter.
	JoinTimeout = 10 * time.Minute
	// QuorumLossTimeout is the time without a response of a quorum after which the quorum counts as lost.
	QuorumLossTimeout = 10 * time.Second
)

// ErrNotRead is the value of State.EtcdErr until the members have been read. It says nothing about the quorum.
var ErrNotRead = errors.New("the etcd members were not read")

// QuorumLostReason is the reason of the condition EtcdQuorum while the quorum is lost.
const QuorumLostReason = v1alpha1.ReasonQuorumLost

// State is the observed state of one cluster; see the package comment for its invariants.
type State struct {
	Cluster *v1alpha1.ApiServerCluster
	Image   string // image of new pods: from the spec, else from the status, else the operator's default
	Pods    []corev1.Pod
	Claims  []corev1.PersistentVolumeClaim
	// Released holds the claims that were released instead of deleted when their members left, including claims of
	// deleted clusters with the same name. The cluster does not own them.
	Released []corev1.PersistentVolumeClaim
	Members  []etcd.Member
	EtcdErr  error // why Members is unknown; nil if a quorum has responded
	// Survivors has the data of each member in the stored status, as the member itself reports it, while the quorum is
	// lost.
	Survivors []etcd.Survivor
	// Acknowledged has the newest state that each member is known to have reached, by member ID, as far as this process
	// has observed.
	Acknowledged map[uint64]etcd.Acknowledged
}

// Read lists the pods and claims that a cluster owns. The reader must not be cached. EtcdErr of the result is
// ErrNotRead.
func Read(
	ctx context.Context, reader client.Reader, cluster *v1alpha1.ApiServerCluster, image string,
) (*State, error) {
	options := []client.ListOption{client.InNamespace(cluster.Namespace), client.MatchingLabels(desired.Selector(cluster))}
	var pods corev1.PodList
	if err := reader.List(ctx, &pods, options...); err != nil {
		return nil, fmt.Errorf("list pods: %w", err)
	}
	var claims corev1.PersistentVolumeClaimList
	if err := reader.List(ctx, &claims, options...); err != nil {
		return nil, fmt.Errorf("list persistent volume claims: %w", err)
	}
	return &State{
		Cluster: cluster, Image: image, EtcdErr: ErrNotRead,
		Pods: slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool {
			return !desired.Owns(cluster, &pod)
		}),
		Released: slices.DeleteFunc(slices.Clone(claims.Items), func(claim corev1.PersistentVolumeClaim) bool {
			return claim.Annotations[desired.FormerMemberAnnotation] == "" || desired.Owns(cluster, &claim)
		}),
		Claims: slices.DeleteFunc(claims.Items, func(claim corev1.PersistentVolumeClaim) bool {
			return !desired.Owns(cluster, &claim)
		}),
	}, nil
}

// WithMembers returns a copy of the state with the members of its etcd, or with the error why they are unknown.
func (s *State) WithMembers(members []etcd.Member, err error) *State {
	next := *s
	next.Members, next.EtcdErr = members, err
	return &next
}

// WithSurvivors returns a copy of the state with the data of the members of an etcd that has lost its quorum.
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

// Endpoints returns the members whose pods have an IP address and have not terminated.
func (s *State) Endpoints() []etcd.Endpoint {
	var endpoints []etcd.Endpoint
	for i := range s.Pods {
		if pod := &s.Pods[i]; RunsMember(pod) && pod.Status.PodIP != "" && !Terminated(pod) {
			endpoints = append(endpoints, etcd.Endpoint{Name: pod.Name, Address: pod.Status.PodIP})
		}
	}
	return endpoints
}

// Pod returns the pod with a name, or nil.
func (s *State) Pod(name string) *corev1.Pod {
	for i := range s.Pods {
		if s.Pods[i].Name == name {
			return &s.Pods[i]
		}
	}
	return nil
}

// Claim returns the claim with a name, or nil. A claim has the name of its member.
func (s *State) Claim(name string) *corev1.PersistentVolumeClaim {
	for i := range s.Claims {
		if s.Claims[i].Name == name {
			return &s.Claims[i]
		}
	}
	return nil
}

// Member returns the member with a name, or nil.
func (s *State) Member(name string) *etcd.Member {
	for i := range s.Members {
		if s.Members[i].Name == name {
			return &s.Members[i]
		}
	}
	return nil
}

// Voters returns the number of voters, and how many of them are healthy.
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

// ReadyReplicas returns the number of API servers that are ready.
func (s *State) ReadyReplicas() int {
	n := 0
	for i := range s.Pods {
		if Ready(&s.Pods[i]) {
			n++
		}
	}
	return n
}

// Unreachable reports whether a list of members was requested and no quorum responded.
func (s *State) Unreachable() bool { return errors.Is(s.EtcdErr, etcd.ErrUnreachable) }

// QuorumLost reports whether the quorum of etcd is lost. The quorum of a bootstrapped etcd is lost if no quorum has
// responded for QuorumLossTimeout, according to the stored condition EtcdQuorum. It then stays lost until a quorum
// responds. The quorum of an etcd that is not bootstrapped is lost if so many initial members refuse to start that the
// other initial members are not a quorum. A hibernated cluster has not lost its quorum.
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
	return c.Status == metav1.ConditionUnknown && c.Reason != v1alpha1.ReasonNotObserved &&
		now.Sub(c.LastTransitionTime.Time) >= QuorumLossTimeout
}

// MemberRefuses reports whether a member does not start because its volume lacks the data that the member has voted
// with. A new pod does not help, because no pod template brings the data back.
func (s *State) MemberRefuses(m etcd.Member) bool {
	pod := s.Pod(m.Name)
	return !m.Healthy && pod != nil && Refuses(pod) && !s.KeepsWrites(m)
}

// LostWrites returns the message of a member that has acknowledged writes which the other members lack, or "".
func (s *State) LostWrites(name string) string {
	if claim := s.Claim(name); claim != nil && claim.Annotations[desired.LostWritesAnnotation] != "" {
		return claim.Annotations[desired.LostWritesAnnotation]
	}
	if pod := s.Pod(name); pod != nil && HasLostWrites(pod) {
		return cmp.Or(ServerTermination(pod), "it has acknowledged writes that the other members lack")
	}
	return ""
}

// KeepsWrites reports whether a member may have the only copy of acknowledged writes, and the user has not requested
// its replacement.
func (s *State) KeepsWrites(m etcd.Member) bool {
	return !m.Healthy && s.LostWrites(m.Name) != "" && !s.Cluster.MayReplaceMember(m.Name)
}

// MemberLost reports whether a member has to be replaced: it has been unhealthy for longer than
// spec.replaceUnhealthyAfter, or its data is damaged, while another member with the same pod template is healthy.
// Without such a member the template may be the cause, and a new member would fail in the same way.
func (s *State) MemberLost(m etcd.Member, now time.Time) bool {
	if !m.Healthy && s.LostWrites(m.Name) != "" {
		return !s.KeepsWrites(m)
	}
	since, pod := s.UnhealthySince(m.Name), s.Pod(m.Name)
	if m.Healthy || pod == nil || m.Learner && !Damaged(pod) { // learners have their own timeout, JoinTimeout
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

// initialMembersRefuse reports whether so many initial members refuse to start that the remaining initial members are
// not a quorum.
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

// Damaged reports whether the member of a pod has exited because its data is damaged, and has not become ready since.
func Damaged(pod *corev1.Pod) bool { return exitedWith(pod, desired.DamagedDataExitCode) }

// Refuses reports whether the member of a pod has exited because its volume lacks the data that the member has voted
// with, and has not become ready since.
func Refuses(pod *corev1.Pod) bool { return exitedWith(pod, desired.LostDataExitCode) }

// HasLostWrites reports whether the member of a pod has exited because it has acknowledged writes that the other
// members lack, and has not become ready since.
func HasLostWrites(pod *corev1.Pod) bool { return exitedWith(pod, desired.LostWritesExitCode) }

// exitedWith reports whether the last termination of a pod's server has an exit code, and the server is not ready.
func exitedWith(pod *corev1.Pod, code int32) bool {
	for _, container := range pod.Status.ContainerStatuses {
		terminated := cmp.Or(container.State.Terminated, container.LastTerminationState.Terminated)
		if container.Name == desired.ServerContainer && !container.Ready && terminated != nil && terminated.ExitCode == code {
			return true
		}
	}
	return false
}

// sameTemplate reports whether two pods were created from the same pod template, as far as the server and etcd are
// concerned.
func sameTemplate(a, b *corev1.Pod) bool {
	return a.Annotations[desired.ServerHashAnnotation] == b.Annotations[desired.ServerHashAnnotation] &&
		a.Annotations[desired.EtcdHashAnnotation] == b.Annotations[desired.EtcdHashAnnotation]
}

// UnhealthySince returns the time since which a member has been unhealthy, according to the stored status, or nil.
func (s *State) UnhealthySince(name string) *metav1.Time {
	for _, m := range s.Cluster.Status.Members {
		if m.Name == name {
			return m.UnhealthySince
		}
	}
	return nil
}

// RunsMember reports whether a pod runs an etcd member. It recognizes the pod of a member whose labels were removed by
// its volumes, which are immutable.
func RunsMember(pod *corev1.Pod) bool {
	if pod.Labels[desired.RoleLabel] == desired.RoleMember {
		return true
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(volume corev1.Volume) bool {
		return volume.PersistentVolumeClaim != nil && volume.PersistentVolumeClaim.ClaimName == pod.Name
	})
}

// Ready reports whether a pod has the condition Ready and is not terminating.
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

// HasRun reports whether a container of a pod has ever started, as far as the kubelet has reported.
func HasRun(pod *corev1.Pod) bool {
	return Ready(pod) || slices.ContainsFunc(pod.Status.ContainerStatuses, func(container corev1.ContainerStatus) bool {
		return container.State.Running != nil || container.State.Terminated != nil ||
			container.LastTerminationState.Terminated != nil
	})
}

// Terminated reports whether all containers of a pod have terminated and will not be restarted.
func Terminated(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// MemberID returns a member ID in hexadecimal, as etcdctl prints it.
func MemberID(id uint64) string { return strconv.FormatUint(id, 16) }

// ParseMemberID parses a member ID in hexadecimal. It returns 0 if the text is none.
func ParseMemberID(text string) uint64 {
	id, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		return 0
	}
	return id
}
