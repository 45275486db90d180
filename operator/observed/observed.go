// Package observed reads the world once into one value: the pods and claims of a cluster, not from a cache, and what its
// etcd members say. Everything decided afterwards is decided from that value.
package observed

import (
	"context"
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
	"quorate.dev/operator/membership"
)

const (
	// JoinPatience is how long a learner may take to become a voter.
	JoinPatience = 10 * time.Minute
	// SilencePatience is how long nobody may answer before the quorum counts as lost.
	SilencePatience = 10 * time.Second
	// LossPatience is how long a voter may be silent before it is replaced.
	LossPatience = 5 * time.Minute
)

// QuorumLostReason of the condition EtcdQuorum.
const QuorumLostReason = "QuorumLost"

// World is what was seen of one cluster.
type World struct {
	Cluster *v1alpha1.ApiServerCluster
	Image   string // that the spec means
	Pods    []corev1.Pod
	Claims  []corev1.PersistentVolumeClaim
	Members []etcd.Member
	Etcd    error // why Members is unknown; nil when a quorum answered
}

// Read lists the pods and claims of a cluster. The reader must not be a cache.
func Read(ctx context.Context, reader client.Reader, cluster *v1alpha1.ApiServerCluster, image string) (*World, error) {
	w := &World{Cluster: cluster, Image: image, Etcd: etcd.ErrUnreachable}
	mine := []client.ListOption{client.InNamespace(cluster.Namespace), client.MatchingLabels(desired.Selector(cluster))}
	var pods corev1.PodList
	if err := reader.List(ctx, &pods, mine...); err != nil {
		return nil, fmt.Errorf("listing pods: %w", err)
	}
	var claims corev1.PersistentVolumeClaimList
	if err := reader.List(ctx, &claims, mine...); err != nil {
		return nil, fmt.Errorf("listing persistent volume claims: %w", err)
	}
	w.Pods = slices.DeleteFunc(pods.Items, func(pod corev1.Pod) bool { return !metav1.IsControlledBy(&pod, cluster) })
	w.Claims = slices.DeleteFunc(claims.Items, func(claim corev1.PersistentVolumeClaim) bool { return !metav1.IsControlledBy(&claim, cluster) })
	return w, nil
}

// Ask reads the member list.
func (w *World) Ask(ctx context.Context, client *etcd.Client) {
	w.Members, w.Etcd = client.Read(ctx)
}

// Endpoints are the pods that run members and have an address.
func (w *World) Endpoints() []etcd.Endpoint {
	var endpoints []etcd.Endpoint
	for _, pod := range w.Pods {
		if pod.Labels[desired.RoleLabel] == desired.RoleMember && pod.Status.PodIP != "" && !ended(&pod) {
			endpoints = append(endpoints, etcd.Endpoint{Name: pod.Name, Address: pod.Status.PodIP})
		}
	}
	return endpoints
}

// Pod by name.
func (w *World) Pod(name string) *corev1.Pod {
	for i := range w.Pods {
		if w.Pods[i].Name == name {
			return &w.Pods[i]
		}
	}
	return nil
}

// Member by name.
func (w *World) Member(name string) *etcd.Member {
	for i := range w.Members {
		if w.Members[i].Name == name {
			return &w.Members[i]
		}
	}
	return nil
}

// Voters counts the members that vote.
func (w *World) Voters() (all, healthy int) {
	for _, m := range w.Members {
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

// ReadyReplicas counts the API servers that serve.
func (w *World) ReadyReplicas() int {
	n := 0
	for i := range w.Pods {
		if Ready(&w.Pods[i]) {
			n++
		}
	}
	return n
}

// Observation is the world in the terms of the membership plan.
func (w *World) Observation(now time.Time) membership.Observation {
	o := membership.Observation{
		Cluster: w.Cluster.Name, External: w.Cluster.Spec.Etcd.External != nil, Replicas: desired.Replicas(w.Cluster),
		Voters: desired.Voters(w.Cluster), Intent: w.intent(now), Reached: w.Etcd == nil, Silent: w.QuorumLost(now),
	}
	var voters []string
	for _, m := range w.Members {
		o.Members = append(o.Members, membership.Member{
			ID: m.ID, Name: m.Name, Learner: m.Learner, Started: m.Started, Healthy: m.Healthy, Leader: m.Leader,
			Applied: m.Applied, Lost: w.lost(m, now),
		})
		if !m.Learner {
			voters = append(voters, m.Name)
		}
	}
	hashes := desired.HashesOf(w.Cluster, w.Image)
	for i := range w.Pods {
		pod := &w.Pods[i]
		o.Pods = append(o.Pods, membership.Pod{
			Name: pod.Name, Member: pod.Labels[desired.RoleLabel] == desired.RoleMember, Ready: Ready(pod),
			Outdated: desired.Outdated(pod, hashes, voters), Failed: ended(pod), Terminating: pod.DeletionTimestamp != nil,
		})
	}
	for _, claim := range w.Claims {
		o.Claims = append(o.Claims, membership.Claim{
			Name: claim.Name, Lost: claim.Status.Phase == corev1.ClaimLost, Terminating: claim.DeletionTimestamp != nil,
		})
	}
	return o
}

// QuorumLost tells whether a cluster that was formed has not answered for a while, going by the condition that says so.
func (w *World) QuorumLost(now time.Time) bool {
	m := w.Cluster.Status.Membership
	if w.Etcd == nil || m == nil || !m.Formed {
		return false
	}
	c := meta.FindStatusCondition(w.Cluster.Status.Conditions, v1alpha1.EtcdQuorum)
	if c == nil || c.Reason == QuorumLostReason {
		return c != nil
	}
	return c.Status == metav1.ConditionUnknown && now.Sub(c.LastTransitionTime.Time) >= SilencePatience
}

func (w *World) intent(now time.Time) membership.Intent {
	m := w.Cluster.Status.Membership
	if m == nil {
		return membership.Intent{}
	}
	return membership.Intent{
		Founders: m.Founders, Formed: m.Formed, Next: int(m.NextOrdinal), Joining: m.Joining,
		Overdue: m.Joining != "" && m.JoiningSince != nil && now.Sub(m.JoiningSince.Time) > JoinPatience,
	}
}

// lost tells whether a voter has been silent for too long for a reason of its own: another one runs well with the same
// template. Otherwise the fault is in the spec, and a new member would share it.
func (w *World) lost(m etcd.Member, now time.Time) bool {
	since := w.UnhealthySince(m.Name)
	if m.Healthy || m.Learner || since == nil || now.Sub(since.Time) <= LossPatience {
		return false
	}
	pod := w.Pod(m.Name)
	if pod == nil {
		return false
	}
	for _, other := range w.Members {
		reference := w.Pod(other.Name)
		if other.Healthy && reference != nil && sameTemplate(reference, pod) {
			return true
		}
	}
	return false
}

func sameTemplate(a, b *corev1.Pod) bool {
	return a.Annotations[desired.ServerHashAnnotation] == b.Annotations[desired.ServerHashAnnotation] &&
		a.Annotations[desired.EtcdHashAnnotation] == b.Annotations[desired.EtcdHashAnnotation]
}

// UnhealthySince is when a member was first seen to be silent, as written in the status.
func (w *World) UnhealthySince(name string) *metav1.Time {
	for _, m := range w.Cluster.Status.Members {
		if m.Name == name {
			return m.UnhealthySince
		}
	}
	return nil
}

// Ready tells whether a pod serves.
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

func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded
}

// MemberID in etcd's notation.
func MemberID(id uint64) string { return strconv.FormatUint(id, 16) }
