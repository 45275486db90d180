package membership

import (
	"cmp"
	"fmt"
	"slices"
)

// Reasons of DeletePod that several steps share.
const (
	reasonTerminated      = "its containers have terminated"
	reasonOutdated        = "its spec is outdated"
	reasonUnreadyOutdated = "it is not ready and its spec is outdated"
)

// ensureMemberPods creates the claim of a new learner, and the pod of each member that has its volume. For a voter
// without its claim it creates neither a claim nor a pod: a voter must not restart without its data. It also leaves a
// surplus voter without a pod alone, because shrink removes that voter next.
func (v *view) ensureMemberPods() (Action, bool) {
	surplus, shrinking := v.surplusVoter()
	for _, m := range v.Members {
		pod, ok := v.pods[m.Name]
		_, claimed := v.claims[m.Name]
		switch {
		case ok && pod.Failed && !pod.Terminating:
			return Action{Kind: DeletePod, Name: m.Name, Reason: reasonTerminated}, true
		case !ok && shrinking && m.Name == surplus.Name && v.removable(surplus) && !v.replacing():
		case !ok && v.hasVolume(m.Name):
			return Action{Kind: CreatePod, Name: m.Name, Reason: "the member has no pod"}, true
		case !claimed && m.Learner && !m.Started && m.Name == v.Intent.JoiningMember:
			return Action{Kind: CreateClaim, Name: m.Name, Reason: "new learner"}, true
		}
	}
	return Action{}, false
}

// replacing reports whether a voter has to be replaced, for which a surplus voter may be needed.
func (v *view) replacing() bool {
	return slices.ContainsFunc(v.voters, v.needsReplacement)
}

// cleanUp deletes the pods, then the claims, of former members. If the joining member is a former member, because it
// was removed from etcd, its join ends: the next member gets a new name.
func (v *view) cleanUp() (Action, bool) {
	for _, pod := range v.Pods {
		if _, ok := v.member(pod.Name); ok || !pod.Member {
			continue
		}
		if pod.Name == v.Intent.JoiningMember {
			return Action{Kind: FinishJoin, Name: pod.Name, Reason: "it was removed from etcd"}, true
		}
		if !pod.Terminating {
			return Action{Kind: DeletePod, Name: pod.Name, Reason: "not an etcd member"}, true
		}
	}
	for _, claim := range v.Claims {
		if _, ok := v.member(claim.Name); ok {
			continue
		}
		if claim.Name == v.Intent.JoiningMember {
			return Action{Kind: FinishJoin, Name: claim.Name, Reason: "it was removed from etcd"}, true
		}
		switch _, running := v.pods[claim.Name]; {
		case running || claim.Terminating:
		case claim.Kept:
			return Action{
				Kind: ReleaseClaim, Name: claim.Name, Reason: "it may have acknowledged writes that the members lack",
			}, true
		default:
			return Action{Kind: DeleteClaim, Name: claim.Name, Reason: "not an etcd member"}, true
		}
	}
	return Action{}, false
}

// scaleServers creates and deletes stateless servers. While voters are being added, the servers that they replace stay.
func (v *view) scaleServers() (Action, bool) {
	var live []Pod
	for _, pod := range v.Pods {
		if pod.Member || pod.Terminating {
			continue
		}
		if pod.Failed {
			return Action{Kind: DeletePod, Name: pod.Name, Reason: reasonTerminated}, true
		}
		live = append(live, pod)
	}
	floor, ceiling := v.Replicas, v.Replicas
	if !v.External {
		floor = max(0, v.Replicas-v.Voters)
		ceiling = max(floor, v.Replicas-len(v.voters))
	}
	switch {
	case len(live) < floor:
		return Action{Kind: CreateServer, Name: v.freeServerName(), Reason: scale(len(live), floor)}, true
	case len(live) > ceiling:
		return Action{Kind: DeletePod, Name: surplusServer(live).Name, Reason: scale(len(live), ceiling)}, true
	}
	return Action{}, false
}

// scale returns the reason of an action of scaleServers.
func scale(from, to int) string {
	return fmt.Sprintf("scaling API servers without etcd from %d to %d", from, to)
}

// freeServerName returns a name that no replica has and no member ever had. Names of former servers are reused, as
// servers store nothing.
func (v *view) freeServerName() string {
	for ordinal := v.Intent.NextOrdinal; ; ordinal++ {
		name := Name(v.Cluster, ordinal)
		_, running := v.pods[name]
		_, claimed := v.claims[name]
		if !running && !claimed && name != v.Intent.JoiningMember {
			return name
		}
	}
}

// surplusServer returns the server to delete: an unready one, or else the last.
func surplusServer(servers []Pod) Pod {
	for _, pod := range servers {
		if !pod.Ready {
			return pod
		}
	}
	return servers[len(servers)-1]
}

// hibernate deletes all pods: servers first, then followers, then the leader, so that stopping a follower causes no
// election. Claims and the membership stay. When the cluster is scaled up, its members start as after a lost quorum
// (recoverQuorum). A running member whose volume is lost has the only copy of its data in its process, which a deletion
// of its pod destroys: such pods are deleted before the pods of other members, and only while the voters with volumes
// are a quorum.
func (v *view) hibernate() (Action, bool) {
	if v.HasQuorum && v.Intent.Bootstrapped && v.withVolume() < Quorum(len(v.voters)) {
		return Action{
			Kind: Wait, Reason: "Not hibernating while most voters have lost their volumes: scale up to replace them",
		}, true
	}
	pods := slices.SortedStableFunc(slices.Values(v.Pods), func(a, b Pod) int {
		return cmp.Compare(v.hibernationOrder(a), v.hibernationOrder(b))
	})
	for _, pod := range pods {
		switch {
		case pod.Terminating:
		case pod.Member && !v.hasVolume(pod.Name) && !v.HasQuorum:
			return Action{
				Kind: Wait, Reason: "Not hibernating " + pod.Name + ": its volume is lost and etcd has no quorum",
			}, true
		default:
			return Action{Kind: DeletePod, Name: pod.Name, Reason: "the cluster has no replicas"}, true
		}
	}
	return Action{}, false
}

// hibernationOrder returns the rank in which hibernate deletes a pod: servers, members without their volume, followers,
// the leader.
func (v *view) hibernationOrder(pod Pod) int {
	m, _ := v.member(pod.Name)
	switch {
	case !pod.Member:
		return 0
	case !v.hasVolume(pod.Name):
		return 1
	case !m.Leader:
		return 2
	}
	return 3
}

// withVolume returns the number of voters that still have the claim on which they have started.
func (v *view) withVolume() int {
	n := 0
	for _, m := range v.voters {
		if v.hasVolume(m.Name) {
			n++
		}
	}
	return n
}

// restartUnready restarts outdated pods that are not ready, before the rollout: the new spec may repair them.
func (v *view) restartUnready() (Action, bool) {
	for _, pod := range v.Pods {
		if pod.Member && v.UpgradeHeld != "" {
			continue
		}
		if pod.Outdated && !pod.Ready && !pod.Terminating && v.restartable(pod.Name) {
			return Action{Kind: DeletePod, Name: pod.Name, Reason: reasonUnreadyOutdated}, true
		}
	}
	return Action{}, false
}

// rollOut restarts outdated pods one at a time, each after the previous pod is ready: servers first, then followers,
// then the leader.
func (v *view) rollOut() (Action, bool) {
	if !v.outdated() {
		return Action{}, false
	}
	if held := cmp.Or(v.RolloutHeld, v.UpgradeHeld); held != "" {
		return Action{Kind: Wait, Reason: held}, true
	}
	if reason := v.rolloutBlocked(); reason != "" {
		return Action{Kind: Wait, Reason: reason}, true
	}
	var leader Member
	for _, member := range []bool{false, true} {
		for _, pod := range v.Pods {
			m, _ := v.member(pod.Name)
			switch {
			case !pod.Outdated || pod.Member != member:
			case m.Leader:
				leader = m
			default:
				return v.restart(pod.Name)
			}
		}
	}
	if next, ok := v.successor(leader.Name); ok {
		return moveLeader(leader, next, "the spec of its pod is outdated"), true
	}
	return v.restart(leader.Name)
}

// rolloutBlocked returns a sentence with the reason why the rollout has to wait before it restarts the next pod, or "".
func (v *view) rolloutBlocked() string {
	for _, m := range v.Members {
		if !m.Healthy || m.Learner {
			return "Waiting for member " + m.Name + " to become healthy before continuing the rollout"
		}
	}
	for _, pod := range v.Pods {
		if !pod.Ready || pod.Terminating {
			return "Waiting for pod " + pod.Name + " before continuing the rollout"
		}
	}
	if v.Intent.JoiningMember != "" || !v.External && len(v.voters) != v.Voters {
		return "Waiting for the membership change to finish before continuing the rollout"
	}
	return ""
}

// restart deletes an outdated pod, which the next plans create again from the present spec, unless etcd would lose its
// quorum.
func (v *view) restart(name string) (Action, bool) {
	if !v.restartable(name) {
		return Action{Kind: Wait, Name: name, Reason: "Waiting for healthy voters before restarting " + name}, true
	}
	return Action{Kind: DeletePod, Name: name, Reason: reasonOutdated}, true
}
