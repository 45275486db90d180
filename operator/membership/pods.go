package membership

import (
	"fmt"
)

// revive gives each member in the list what it needs to run. A voter whose claim is gone gets nothing: it must not come
// back without its data.
func (v *view) revive() (Action, bool) {
	for _, m := range v.Members {
		pod, ok := v.pods[m.Name]
		_, claimed := v.claims[m.Name]
		switch {
		case ok && pod.Failed && !pod.Terminating:
			return Action{Kind: DeletePod, Name: m.Name, Reason: "it ended"}, true
		case !ok && v.usable(m.Name):
			return Action{Kind: CreatePod, Name: m.Name, Reason: "the member has no pod"}, true
		case !claimed && m.Learner && !m.Started && m.Name == v.Intent.Joining:
			return Action{Kind: CreateClaim, Name: m.Name, Reason: "a new member"}, true
		}
	}
	return Action{}, false
}

// clean removes the pods, then the claims, of those who are no members. Where one of them is the joining name, it has
// been a member, so its name is spent.
func (v *view) clean() (Action, bool) {
	for _, pod := range v.Pods {
		if _, ok := v.member(pod.Name); ok || !pod.Member {
			continue
		}
		if pod.Name == v.Intent.Joining {
			return Action{Kind: Settle, Name: pod.Name, Reason: "it is no longer a member"}, true
		}
		if !pod.Terminating {
			return Action{Kind: DeletePod, Name: pod.Name, Reason: "not a member"}, true
		}
	}
	for _, claim := range v.Claims {
		if _, ok := v.member(claim.Name); ok {
			continue
		}
		if claim.Name == v.Intent.Joining {
			return Action{Kind: Settle, Name: claim.Name, Reason: "it is no longer a member"}, true
		}
		if _, running := v.pods[claim.Name]; !running && !claim.Terminating {
			return Action{Kind: DeleteClaim, Name: claim.Name, Reason: "not a member"}, true
		}
	}
	return Action{}, false
}

// servers keeps the stateless replicas. While voters are still being added the servers they make superfluous stay.
func (v *view) servers() (Action, bool) {
	var live []Pod
	for _, pod := range v.Pods {
		if pod.Member || pod.Terminating {
			continue
		}
		if pod.Failed {
			return Action{Kind: DeletePod, Name: pod.Name, Reason: "it ended"}, true
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
		return Action{Kind: CreateServer, Name: v.freeServer(), Reason: fmt.Sprintf("%d of %d servers", len(live), floor)}, true
	case len(live) > ceiling:
		return Action{Kind: DeletePod, Name: superfluous(live).Name, Reason: fmt.Sprintf("%d of %d servers", len(live), ceiling)}, true
	}
	return Action{}, false
}

// freeServer is a name that neither a member ever had nor a replica has. Servers keep nothing, so theirs come back.
func (v *view) freeServer() string {
	for ordinal := v.Intent.Next; ; ordinal++ {
		name := Name(v.Cluster, ordinal)
		_, running := v.pods[name]
		_, claimed := v.claims[name]
		if !running && !claimed && name != v.Intent.Joining {
			return name
		}
	}
}

// superfluous is the server to do without: one that is not ready, else the last.
func superfluous(servers []Pod) Pod {
	for _, pod := range servers {
		if !pod.Ready {
			return pod
		}
	}
	return servers[len(servers)-1]
}

// mend restarts outdated pods that are not ready: the new spec may be the cure.
func (v *view) mend() (Action, bool) {
	for _, pod := range v.Pods {
		if pod.Outdated && !pod.Ready && !pod.Terminating && v.restartable(pod.Name) {
			return Action{Kind: DeletePod, Name: pod.Name, Reason: "not ready, and made for another spec"}, true
		}
	}
	return Action{}, false
}

// roll restarts outdated pods one at a time, each after the one before is ready again: servers, followers, the leader.
func (v *view) roll() (Action, bool) {
	outdated := false
	for _, pod := range v.Pods {
		outdated = outdated || pod.Outdated
	}
	if !outdated {
		return Action{}, false
	}
	if reason := v.unsettled(); reason != "" {
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
		return Action{Kind: MoveLeader, Name: leader.Name, ID: leader.ID, To: next.Name, ToID: next.ID, Reason: "its pod was made for another spec"}, true
	}
	return v.restart(leader.Name)
}

// unsettled says what a rollout has to wait for.
func (v *view) unsettled() string {
	for _, m := range v.Members {
		if !m.Healthy || m.Learner {
			return "the rollout waits for member " + m.Name
		}
	}
	for _, pod := range v.Pods {
		if !pod.Ready || pod.Terminating {
			return "the rollout waits for " + pod.Name
		}
	}
	if v.Intent.Joining != "" || !v.External && len(v.voters) != v.Voters {
		return "the rollout waits for the membership change"
	}
	return ""
}

func (v *view) restart(name string) (Action, bool) {
	if !v.restartable(name) {
		return Action{Kind: Wait, Name: name, Reason: "restarting " + name + " would lose the quorum"}, true
	}
	return Action{Kind: DeletePod, Name: name, Reason: "made for another spec"}, true
}
