// Package status says what is true of a cluster: fields and conditions, computed purely from one observation. Each
// condition is one check in a file of its own.
package status

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
)

// Expiry of one certificate.
type Expiry struct {
	Secret string
	At     time.Time
}

// Input is everything that conditions are judged by.
type Input struct {
	World        *observed.World   // nil when the world could not be read
	Action       membership.Action // what is being done, or waited for
	Refused      error             // why etcd did not do it yet
	Errors       []error           // of the steps
	Invalid      error             // what is wrong with the spec
	Certificates []Expiry
	Version      string
	Endpoint     string
	Now          time.Time
}

// Compute returns the next status of a cluster. The observed generation moves only when the world was seen.
func Compute(cluster *v1alpha1.ApiServerCluster, in Input) v1alpha1.ApiServerClusterStatus {
	next := *cluster.Status.DeepCopy()
	for _, check := range []func(*v1alpha1.ApiServerCluster, Input) metav1.Condition{available, progressing, degraded, quorum, certificates} {
		condition := check(cluster, in)
		condition.ObservedGeneration = cluster.Generation
		set(&next, condition, in.Now)
	}
	if cluster.Spec.Etcd.External != nil {
		meta.RemoveStatusCondition(&next.Conditions, v1alpha1.EtcdQuorum)
	}
	if in.World == nil {
		return next
	}
	fill(&next, cluster, in)
	next.ObservedGeneration = cluster.Generation
	return next
}

func set(next *v1alpha1.ApiServerClusterStatus, condition metav1.Condition, now time.Time) {
	if old := meta.FindStatusCondition(next.Conditions, condition.Type); old == nil || old.Status != condition.Status {
		condition.LastTransitionTime = metav1.NewTime(now)
	}
	meta.SetStatusCondition(&next.Conditions, condition)
}

func fill(next *v1alpha1.ApiServerClusterStatus, cluster *v1alpha1.ApiServerCluster, in Input) {
	w := in.World
	next.Image, next.Endpoint = w.Image, cmp.Or(in.Endpoint, next.Endpoint)
	next.Version = cmp.Or(in.Version, next.Version)
	next.Selector = desired.Selector(cluster).String()
	next.Replicas, next.ReadyReplicas = int32(len(w.Pods)), int32(w.ReadyReplicas())
	next.Ready = fmt.Sprintf("%d/%d", next.ReadyReplicas, desired.Replicas(cluster))
	if cluster.Spec.Etcd.External != nil {
		return
	}
	if w.Etcd != nil {
		next.Members = silent(cluster.Status.Members, in.Now)
		return
	}
	voters, _ := w.Voters()
	next.Voters = int32(voters)
	next.Members = members(w, in.Now)
}

func members(w *observed.World, now time.Time) []v1alpha1.MemberStatus {
	var out []v1alpha1.MemberStatus
	for _, m := range w.Members {
		status := v1alpha1.MemberStatus{Name: m.Name, ID: observed.MemberID(m.ID), Role: "voter", Version: m.Version, DBSize: m.DBSize}
		switch {
		case m.Learner:
			status.Role = "learner"
		case m.Leader:
			status.Role = "leader"
		}
		pod := w.Pod(m.Name)
		status.Ready = m.Healthy && pod != nil && observed.Ready(pod)
		if !m.Healthy {
			status.UnhealthySince = w.UnhealthySince(m.Name)
			if status.UnhealthySince == nil {
				status.UnhealthySince = &metav1.Time{Time: now}
			}
		}
		out = append(out, status)
	}
	slices.SortFunc(out, func(a, b v1alpha1.MemberStatus) int {
		return cmp.Compare(membership.Ordinal(w.Cluster.Name, a.Name), membership.Ordinal(w.Cluster.Name, b.Name))
	})
	return out
}

// silent are the members last known, none of which can be called ready without a quorum.
func silent(members []v1alpha1.MemberStatus, now time.Time) []v1alpha1.MemberStatus {
	out := slices.Clone(members)
	for i := range out {
		out[i].Ready = false
		if out[i].Role == "leader" {
			out[i].Role = "voter"
		}
		if out[i].UnhealthySince == nil {
			out[i].UnhealthySince = &metav1.Time{Time: now}
		}
	}
	return out
}

// condition is a shorthand.
func condition(kind string, status bool, reason, format string, args ...any) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, args...)}
	if status {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func unknown(kind string) metav1.Condition {
	return metav1.Condition{Type: kind, Status: metav1.ConditionUnknown, Reason: "NotObserved", Message: "the cluster's objects could not be read"}
}
