package members

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/volumes"
)

// observation translates the observed state and the spec into the input of membership.Plan. The pods in restart count
// as outdated, so that a rotation restarts pods with the same rules as a rollout: one at a time, the leader last, and
// never at the cost of the quorum.
//
// Restoring is true for a restore and for a recovery, because in both the data of the only initial member is prepared
// first. Whether members are lost, refuse to start, or may have the only copy of acknowledged writes is derived by
// package observed from the status, the pods and the annotations of claims.
func observation(
	s *observed.State, c desired.Configuration, restart map[string]bool, now time.Time,
) membership.Observation {
	o := membership.Observation{
		Cluster: s.Cluster.Name, External: s.Cluster.ExternalEtcd(),
		Replicas: s.Cluster.ReplicaCount(), Voters: s.Cluster.VoterCount(),
		Intent: intent(s.Cluster, now), Restoring: s.Cluster.Restoring() || s.Cluster.Recovering(v1alpha1.RecoveryRestoring),
		HasQuorum: s.EtcdErr == nil, QuorumLost: s.QuorumLost(now),
	}
	var voters []string
	for _, m := range s.Members {
		o.Members = append(o.Members, membership.Member{
			ID: m.ID, Name: m.Name, Learner: m.Learner, Started: m.Started, Healthy: m.Healthy, Leader: m.Leader,
			Applied: m.Applied, Lost: s.MemberLost(m, now), Refuses: s.MemberRefuses(m), Kept: s.KeepsWrites(m),
			Unproven:     s.Unproven(m),
			Unrecorded:   s.Unrecorded(m),
			Defragmented: lastDefragment(s.Cluster, m.Name),
			Database:     membership.Database{Size: m.DBSize, InUse: m.InUse, Quota: m.Quota, NoSpace: m.NoSpace},
		})
		if !m.Learner {
			voters = append(voters, m.Name)
		}
	}
	hashes := desired.HashesOf(s.Cluster, s.Image, c)
	for i := range s.Pods {
		pod := &s.Pods[i]
		o.Pods = append(o.Pods, membership.Pod{
			Name: pod.Name, Member: observed.RunsMember(pod), Ready: observed.Ready(pod),
			Outdated: restart[pod.Name] || desired.Outdated(pod, hashes, voters), Failed: observed.Terminated(pod),
			Terminating: pod.DeletionTimestamp != nil,
		})
	}
	for i := range s.Claims {
		claim := &s.Claims[i]
		o.Claims = append(o.Claims, membership.Claim{
			Name: claim.Name, Lost: claim.Status.Phase == corev1.ClaimLost, Replaced: volumes.Replaced(s.Cluster, claim),
			Terminating: claim.DeletionTimestamp != nil, Kept: observed.Kept(claim),
		})
	}
	for i := range s.Released {
		o.ReleasedNames = append(o.ReleasedNames, s.Released[i].Name)
	}
	return o
}

// lastDefragment returns when a member was last defragmented, or zero.
func lastDefragment(cluster *v1alpha1.ApiServerCluster, name string) time.Time {
	for _, m := range cluster.Status.Members {
		if m.Name == name && m.LastDefragmentTime != nil {
			return m.LastDefragmentTime.Time
		}
	}
	return time.Time{}
}

// intent returns the part of the input that only the status has. JoiningSince is stored with the joining member, so
// that the timeout of a join survives a restart of the operator.
func intent(cluster *v1alpha1.ApiServerCluster, now time.Time) membership.Intent {
	m := cluster.Status.Membership
	if m == nil {
		return membership.Intent{}
	}
	timedOut := m.JoiningMember != "" && m.JoiningSince != nil && now.Sub(m.JoiningSince.Time) > observed.JoinTimeout
	return membership.Intent{
		InitialMembers: m.InitialMembers, Bootstrapped: m.Bootstrapped, NextOrdinal: int(m.NextOrdinal),
		JoiningMember: m.JoiningMember, JoinTimedOut: timedOut,
	}
}

// initialCluster returns the configuration of a member for an empty data directory. For a member that has run before it
// contains only that member: etcd then refuses to start without data instead of voting twice in one term. The same
// holds for a member whose volume has a restored backup, or that continues after the loss of the quorum, and for the
// initial members of a cluster whose status was lost.
//
// Only two kinds of members may start without data: the initial members of a new etcd, which get the complete list of
// initial members, and a member that was added as a learner and has never started, which gets the present member list.
func initialCluster(s *observed.State, name string) desired.InitialCluster {
	initial := desired.InitialCluster{PeerURLs: map[string]string{name: desired.PeerURL(s.Cluster, name)}}
	fresh := s.Cluster.Spec.Restore == nil &&
		!s.Cluster.Recovering(v1alpha1.RecoveryRestoring, v1alpha1.RecoveryStarting) && !volumes.MemberRecord(s, name).Started
	if intent := s.Cluster.Status.Membership; intent != nil && !intent.Bootstrapped && fresh {
		initial.New = true
		for _, member := range intent.InitialMembers {
			initial.PeerURLs[member] = desired.PeerURL(s.Cluster, member)
		}
		return initial
	}
	if member := s.Member(name); member != nil && !member.Started {
		for _, m := range s.Members {
			initial.PeerURLs[m.Name] = m.PeerURL
		}
	}
	return initial
}

// countUpdated returns the number of pods that were created from the present spec and are not terminating.
func countUpdated(pods []membership.Pod) *int {
	n := 0
	for _, pod := range pods {
		if !pod.Outdated && !pod.Terminating {
			n++
		}
	}
	return &n
}
