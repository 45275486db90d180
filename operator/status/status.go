// Package status computes the status of a cluster, its fields and conditions, from the observed state and the results
// of a reconciliation. Its functions are pure. Each condition has its own file.
package status

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
)

// Expiry is the expiry time of the certificate in a Secret.
type Expiry struct {
	Secret  string
	At      time.Time
	Created time.Time
	Renewal time.Time // time from which the certificate is due for renewal
}

// Wait describes why a requested deletion has not started.
type Wait struct {
	Reason  string // reason of the condition Deleting
	Message string
}

// Rotation is a replacement of authorities or keys in progress.
type Rotation struct {
	Name    string // the authorities or the key that is replaced, for messages
	Stage   string
	Message string // sentence with the reason why the stage waits; "" if the stage has just begun
}

// Input is the input of Compute.
type Input struct {
	State              *observed.State   // nil if it could not be read
	Action             membership.Action // last planned action; without a kind if none was planned
	Held               string            // why a rollout waits for a maintenance window; "" while a window is open
	Rejected           error             // etcd's error for the action, which is retried
	Errors             []error           // errors of the steps
	Invalid            error             // validation error of the spec
	Lost               error             // names a missing Secret in use; until it is restored, nothing is changed
	Certificates       []Expiry
	UserCertificateErr error // why the user's certificate cannot be used
	Rotations          []Rotation
	// RotationsUnknown is true if this reconciliation has not decided whether authorities or keys have to be replaced,
	// because the operator may not change the cluster or a step has failed.
	RotationsUnknown bool
	APIServices      *[]v1alpha1.APIServiceStatus // nil: unknown, keep the status
	Companions       *[]v1alpha1.CompanionStatus  // nil: unknown, keep the status
	// ConfigurationErr is the reason why the configuration files cannot be used. The last valid files stay in use.
	ConfigurationErr error
	// Undecryptable are resources that were removed from spec.encryption without a confirmation. They stay encrypted.
	Undecryptable []string
	// WithoutEtcd are the API servers that are not ready because their external etcd does not respond.
	WithoutEtcd []string
	Schedules   []Schedule // the backup schedules of the cluster
	Deletion    *Wait      // why a requested deletion waits; nil: none was requested
	VolumeErr   error      // why volumes cannot be expanded
	Versions    observed.Versions
	Endpoint    string
	Now         time.Time
}

// checks compute one condition each.
var checks = []func(*v1alpha1.ApiServerCluster, Input) metav1.Condition{
	available, progressing, degraded, quorum, space, certificates, rotating, apiServices, companions, backupReady,
	paused, restored, recovered, deleting,
}

// Compute returns the next status of a cluster. ObservedGeneration advances only if the state of the cluster was read.
func Compute(cluster *v1alpha1.ApiServerCluster, in Input) v1alpha1.ApiServerClusterStatus {
	next := *cluster.Status.DeepCopy()
	for _, check := range checks {
		condition := check(cluster, in)
		if condition.Type == "" {
			continue // the former condition stays, with its generation
		}
		condition.ObservedGeneration = cluster.Generation
		set(&next, condition, in.Now)
	}
	removeInapplicable(&next, cluster, in)
	next.APIServices, next.Companions = apiServicesOf(cluster, in), companionsOf(cluster, in)
	if in.State == nil {
		return next
	}
	fill(&next, cluster, in)
	next.ObservedGeneration = cluster.Generation
	return next
}

func set(next *v1alpha1.ApiServerClusterStatus, condition metav1.Condition, now time.Time) {
	old := meta.FindStatusCondition(next.Conditions, condition.Type)
	if old == nil || old.Status != condition.Status {
		condition.LastTransitionTime = metav1.NewTime(now)
	} else if old.Reason == v1alpha1.ReasonNotObserved && condition.Reason != old.Reason {
		old.LastTransitionTime = metav1.NewTime(now) // when the present status began is unknown
	}
	meta.SetStatusCondition(&next.Conditions, condition)
}

// newest returns the newer of two versions. A text that is not a semantic version, such as "", counts as older than
// every version.
func newest(a, b string) string {
	first, err := version.ParseSemantic(a)
	if err != nil {
		return b
	}
	if second, err := version.ParseSemantic(b); err == nil && first.LessThan(second) {
		return b
	}
	return a
}

func fill(next *v1alpha1.ApiServerClusterStatus, cluster *v1alpha1.ApiServerCluster, in Input) {
	s := in.State
	next.Image, next.Endpoint = s.Image, cmp.Or(in.Endpoint, next.Endpoint)
	next.Version = cmp.Or(in.Versions.Reported, next.Version)
	next.EffectiveVersion = newest(in.Versions.Effective, next.EffectiveVersion)
	next.Selector = desired.Selector(cluster).String()
	next.Replicas, next.ReadyReplicas = int32(len(s.Pods)), int32(s.ReadyReplicas())
	next.Ready = fmt.Sprintf("%d/%d", next.ReadyReplicas, cluster.ReplicaCount())
	if cluster.ExternalEtcd() {
		return
	}
	if cluster.Hibernated() {
		next.Members = hibernated(cluster.Status.Members)
		return
	}
	if s.EtcdErr != nil && !s.Unreachable() {
		return // keep the members of the last successful read
	}
	if s.EtcdErr != nil {
		next.Members = acknowledge(s, unreachable(cluster.Status.Members, in.Now), 0, in.Now)
		return
	}
	voters, _ := s.Voters()
	next.Voters = int32(voters)
	next.Members = acknowledge(s, members(s, in.Now), acknowledgePeriod, in.Now)
}

func members(s *observed.State, now time.Time) []v1alpha1.MemberStatus {
	var out []v1alpha1.MemberStatus
	for _, m := range s.Members {
		status := v1alpha1.MemberStatus{
			Name: m.Name, ID: observed.MemberID(m.ID), Role: "voter", Version: m.Version, DBSize: m.DBSize,
			LastDefragmentTime: lastDefragment(s.Cluster.Status.Members, m.Name), Volume: volumeOf(s, m),
		}
		switch {
		case m.Learner:
			status.Role = "learner"
		case m.Leader:
			status.Role = "leader"
		}
		pod := s.Pod(m.Name)
		status.Ready = m.Healthy && pod != nil && observed.Ready(pod)
		if former := memberNamed(s.Cluster.Status.Members, m.Name); former != nil && former.ID == status.ID {
			status.Acknowledged = former.Acknowledged
		}
		if !m.Healthy {
			status.UnhealthySince = s.UnhealthySince(m.Name)
			if status.UnhealthySince == nil {
				status.UnhealthySince = &metav1.Time{Time: now}
			}
		}
		out = append(out, status)
	}
	slices.SortFunc(out, func(a, b v1alpha1.MemberStatus) int {
		return cmp.Compare(membership.Ordinal(s.Cluster.Name, a.Name), membership.Ordinal(s.Cluster.Name, b.Name))
	})
	return out
}

func memberNamed(members []v1alpha1.MemberStatus, name string) *v1alpha1.MemberStatus {
	for i := range members {
		if members[i].Name == name {
			return &members[i]
		}
	}
	return nil
}

func lastDefragment(members []v1alpha1.MemberStatus, name string) *metav1.Time {
	if m := memberNamed(members, name); m != nil {
		return m.LastDefragmentTime
	}
	return nil
}

// volumeOf returns the UID of the claim on which a member has started. The UID is recorded once and never changes while
// the member exists, so that a claim that was deleted and created again is recognized.
func volumeOf(s *observed.State, m etcd.Member) string {
	if former := memberNamed(s.Cluster.Status.Members, m.Name); former != nil && former.Volume != "" {
		return former.Volume
	}
	if claim := s.Claim(m.Name); claim != nil && m.Started {
		return string(claim.UID)
	}
	return ""
}

// acknowledgePeriod is the age at which the acknowledged states in the status are updated. More frequent updates would
// write the status in every reconciliation, because the raft log of a running etcd always grows.
const acknowledgePeriod = 5 * time.Minute

// acknowledge updates those acknowledged states of members that are older than period.
func acknowledge(
	s *observed.State, members []v1alpha1.MemberStatus, period time.Duration, now time.Time,
) []v1alpha1.MemberStatus {
	for i := range members {
		m := &members[i]
		id, err := strconv.ParseUint(m.ID, 16, 64)
		newest, ok := s.Acknowledged[id]
		if err != nil || !ok || newest.Index == 0 {
			continue
		}
		stored := m.Acknowledged
		if stored != nil && (stored.Index >= int64(newest.Index) || now.Sub(stored.Time.Time) < period) {
			continue
		}
		m.Acknowledged = &v1alpha1.Acknowledged{
			Revision: newest.Revision, Index: int64(newest.Index), Term: int64(newest.Term), Time: metav1.NewTime(newest.Time),
		}
	}
	return members
}

// unreachable returns the last known members for an etcd without a quorum. No member is ready, and the former leader is
// shown as a voter.
func unreachable(members []v1alpha1.MemberStatus, now time.Time) []v1alpha1.MemberStatus {
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

// hibernated returns the members of a cluster without pods. They are not unhealthy: a member that starts later than
// another one must not be replaced because of its long absence.
func hibernated(members []v1alpha1.MemberStatus) []v1alpha1.MemberStatus {
	out := unreachable(members, time.Time{})
	for i := range out {
		out[i].UnhealthySince = nil
	}
	return out
}

// condition returns a condition that is true or false.
func condition(kind string, status bool, reason, format string, args ...any) metav1.Condition {
	c := metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: reason, Message: fmt.Sprintf(format, args...)}
	if status {
		c.Status = metav1.ConditionTrue
	}
	return c
}

func unknown(kind string) metav1.Condition {
	return metav1.Condition{
		Type: kind, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonNotObserved,
		Message: "The objects of the cluster could not be read",
	}
}
