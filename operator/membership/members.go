package membership

import (
	"fmt"
	"slices"
)

// bootstrap starts all initial members. etcd has no data yet, so nothing can be lost. All claims are created before the
// first pod; once a pod exists, a missing claim therefore means a lost volume. A backup is restored into the volume of
// a single initial member; further members join it.
func (v *view) bootstrap() (Action, bool) {
	if len(v.Intent.InitialMembers) == 0 {
		names := v.initialMembers()
		if len(names) == 0 {
			return Action{Kind: Wait, Reason: "Waiting for volume claims of a former cluster to be deleted"}, true
		}
		return Action{Kind: Bootstrap, Names: names}, true
	}
	if v.HasQuorum {
		return Action{Kind: Bootstrapped}, true
	}
	for _, name := range v.Intent.InitialMembers {
		if _, ok := v.claims[name]; !ok {
			return Action{Kind: CreateClaim, Name: name, Reason: "initial member"}, true
		}
	}
	switch {
	case v.Restoring && v.Recovery.Stage == RecoveryRestoring:
		return v.awaitRecovery(), true
	case v.Restoring:
		return Action{Kind: Wait, Reason: "Waiting for the backup to be restored"}, true
	}
	for _, name := range v.Intent.InitialMembers {
		if action, ok := v.ensurePod(name, "initial member", true); ok {
			return action, true
		}
	}
	return Action{Kind: Wait, Reason: "Waiting for the initial members to form a quorum"}, true
}

// initialMembers returns the names of the claims that have a volume: if there are claims, the status was lost and their
// owners are the members. Without claims it returns new names, one if a backup is restored and Voters otherwise.
func (v *view) initialMembers() []string {
	var names []string
	for _, claim := range v.Claims {
		if v.hasVolume(claim.Name) {
			names = append(names, claim.Name)
		}
	}
	voters := v.Voters
	if v.Restoring {
		voters = 1
	}
	for next := v.nextOrdinal(); len(v.Claims) == 0 && len(names) < voters; next++ {
		names = append(names, Name(v.Cluster, next))
	}
	return names
}

// recoverQuorum takes only actions that are safe without a quorum: it recreates the pods of members that have their
// volumes and, once the quorum has been lost for a while, restarts outdated pods from the present spec, unless an
// upgrade is held.
func (v *view) recoverQuorum() (Action, bool) {
	for _, claim := range v.Claims {
		if action, ok := v.ensurePod(claim.Name, "etcd has no quorum", v.QuorumLost && v.UpgradeHeld == ""); ok &&
			v.hasVolume(claim.Name) {
			return action, true
		}
	}
	reason := "Waiting for etcd to regain its quorum"
	if v.UpgradeHeld != "" {
		reason += "; the upgrade is held: " + v.UpgradeHeld
	}
	return Action{Kind: Wait, Reason: reason}, true
}

// ensurePod recreates the pod of a member that has its volume while there is no quorum. With replaceOutdated it also
// deletes an unready pod of an older spec, because that spec may be why there is no quorum.
func (v *view) ensurePod(name, reason string, replaceOutdated bool) (Action, bool) {
	pod, ok := v.pods[name]
	switch {
	case !ok && v.hasVolume(name):
		return Action{Kind: CreatePod, Name: name, Reason: reason}, true
	case ok && !pod.Terminating && pod.Failed:
		return Action{Kind: DeletePod, Name: name, Reason: reasonTerminated}, true
	case ok && !pod.Terminating && replaceOutdated && pod.Outdated && !pod.Ready:
		return Action{Kind: DeletePod, Name: name, Reason: reasonUnreadyOutdated}, true
	}
	return Action{}, false
}

// advanceJoin takes the joining member from the recorded intent to a voter, or ends its join if it timed out.
func (v *view) advanceJoin() (Action, bool) {
	for _, m := range v.learners {
		if m.Name != v.Intent.JoiningMember {
			return Action{Kind: RemoveMember, Name: m.Name, ID: m.ID, Reason: "learner was not added by the operator"}, true
		}
	}
	if v.Intent.JoiningMember == "" {
		return Action{}, false
	}
	m, ok := v.member(v.Intent.JoiningMember)
	switch {
	case !ok && len(v.voters) >= v.desiredVoters():
		return Action{Kind: FinishJoin, Name: v.Intent.JoiningMember, Reason: "no longer needed"}, true
	case !ok && v.Intent.JoinTimedOut:
		return Action{Kind: FinishJoin, Name: v.Intent.JoiningMember, Reason: "timed out"}, true
	case !ok && v.healthyWithout("") == len(v.voters):
		return Action{Kind: AddLearner, Name: v.Intent.JoiningMember}, true
	case !ok:
		return Action{}, false // wait until the unhealthy voter recovers or is replaced
	case !m.Learner:
		return Action{Kind: FinishJoin, Name: m.Name, Reason: "it is a voter"}, true
	}
	return v.promote(m), true
}

// promote makes a learner a voter once it has caught up. The new voter must not put the quorum at risk: with it, the
// healthy voters must be a quorum of the larger membership. Otherwise the learner waits; it counts for no quorum, so
// that waiting costs nothing.
func (v *view) promote(m Member) Action {
	switch {
	case len(v.voters) >= v.desiredVoters():
		return Action{Kind: RemoveMember, Name: m.Name, ID: m.ID, Reason: "no longer needed"}
	case v.Intent.JoinTimedOut:
		return Action{Kind: RemoveMember, Name: m.Name, ID: m.ID, Reason: "it did not catch up in time"}
	case m.Started && v.needsReplacement(m), m.Lost, m.Refuses:
		return Action{Kind: RemoveMember, Name: m.Name, ID: m.ID, Reason: "its data was lost while it joined"}
	case !m.Started || !m.Healthy:
		return Action{Kind: Wait, Name: m.Name, Reason: "Waiting for learner " + m.Name + " to start"}
	case !v.caughtUp(m):
		return Action{Kind: Wait, Name: m.Name, Reason: "Waiting for learner " + m.Name + " to catch up"}
	case v.healthyWithout("")+1 < Quorum(len(v.voters)+1):
		return Action{Kind: Wait, Name: m.Name, Reason: "Waiting for healthy voters before promoting learner " + m.Name}
	}
	return Action{Kind: Promote, Name: m.Name, ID: m.ID}
}

// caughtUp approximates the rule of etcd's MemberPromote (isLearnerReady): the learner has 90% of the leader's log.
// etcd compares the replicated indexes, which only the leader knows; caughtUp compares the applied indexes, which
// members report. etcd refuses a promotion that comes too early, which is then tried again.
func (v *view) caughtUp(learner Member) bool {
	for _, m := range v.voters {
		if m.Leader {
			return float64(learner.Applied) >= 0.9*float64(m.Applied)
		}
	}
	return false
}

// replaceVoter removes a voter that cannot recover; startJoin then adds another one. Unhealthy voters are removed
// first. A healthy voter whose volume is lost is removed too: its process has the deleted files open, and cannot
// restart.
func (v *view) replaceVoter() (Action, bool) {
	var candidates []Member
	for _, m := range v.voters {
		switch {
		case !v.needsReplacement(m) || len(v.voters) == 1:
		case m.Healthy:
			candidates = append(candidates, m)
		default:
			candidates = slices.Insert(candidates, 0, m)
		}
	}
	if len(candidates) == 0 {
		return Action{}, false
	}
	reason := "it has been unhealthy for too long, or its data is damaged"
	switch {
	case candidates[0].Refuses:
		reason = "its volume does not have the data that it has voted with"
	case !v.hasVolume(candidates[0].Name):
		reason = "its volume was lost"
	}
	return v.removeVoter(candidates[0], reason)
}

// shrink removes surplus voters. If the quorum allows it, the pod stops before its member is removed: an API server
// cannot finish its requests once its member has left. A voter that became healthy only recently is not stopped yet
// (Member.Unrecorded), because it would be unknown afterwards whether the other members have its writes.
func (v *view) shrink() (Action, bool) {
	candidate, ok := v.surplusVoter()
	if !ok {
		return Action{}, false
	}
	reason := fmt.Sprintf("etcd has %d voters, but %d are desired", len(v.voters), v.Voters)
	pod, exists := v.pods[candidate.Name]
	if exists && candidate.Healthy && v.restartable(candidate.Name) {
		if pod.Terminating {
			return Action{
				Kind: Wait, Name: pod.Name, Reason: "Waiting for pod " + pod.Name + " to stop before removing its member",
			}, true
		}
		action, ok := v.removeVoter(candidate, reason)
		if action.Kind == RemoveMember && candidate.Unrecorded {
			return Action{Kind: Wait, Name: candidate.Name,
				Reason: "Waiting until " + candidate.Name + " has compared its data with the leader's before removing it (" +
					reason + ")"}, true
		}
		if action.Kind == RemoveMember {
			action = Action{Kind: DeletePod, Name: candidate.Name, Reason: reason}
		}
		return action, ok
	}
	return v.removeVoter(candidate, reason)
}

// surplusVoter returns the next voter to remove if there are more voters than desired: an unhealthy voter, or else the
// last one. A member that may have the only copy of acknowledged writes is never surplus.
func (v *view) surplusVoter() (Member, bool) {
	if len(v.voters) <= v.Voters {
		return Member{}, false
	}
	candidate, found := Member{}, false
	for _, m := range v.voters {
		if !m.Kept && (!found || !m.Healthy || candidate.Healthy) {
			candidate, found = m, true
		}
	}
	return candidate, found
}

// startJoin chooses the name of the next member if voters are missing.
func (v *view) startJoin() (Action, bool) {
	if len(v.voters) >= v.desiredVoters() || v.Intent.JoiningMember != "" {
		return Action{}, false
	}
	// While such a voter exists, advanceJoin would never add the learner.
	if i := slices.IndexFunc(v.voters, func(m Member) bool { return m.Kept }); i >= 0 {
		name := v.voters[i].Name
		return Action{
			Kind: Wait, Name: name, Reason: "Not adding a member while " + name + " is kept for its acknowledged writes",
		}, true
	}
	return Action{
		Kind: StartJoin, Name: Name(v.Cluster, v.nextOrdinal()),
		Reason: fmt.Sprintf("etcd has %d of %d voters", len(v.voters), v.desiredVoters()),
	}, true
}

// desiredVoters returns Voters, or 2 while a single voter runs without its volume: the second voter copies the data,
// after which the first one can be removed.
func (v *view) desiredVoters() int {
	if len(v.voters) == 1 && v.needsReplacement(v.voters[0]) {
		return max(2, v.Voters)
	}
	return v.Voters
}

// removeVoter returns the next action of removing a voter, or Wait while its removal would risk the quorum, the
// availability of the API or the hold of an upgrade. A healthy leader first moves its leadership, so that the removal
// causes no election; a claim that may have the only copy of acknowledged writes is first marked.
func (v *view) removeVoter(m Member, reason string) (Action, bool) {
	if v.UpgradeHeld != "" {
		return Action{Kind: Wait, Name: m.Name, Reason: v.UpgradeHeld}, true
	}
	if !v.removable(m) {
		return Action{Kind: Wait, Name: m.Name, Reason: fmt.Sprintf(
			"Waiting for healthy voters before removing %s (%s): %d of the other %d are healthy",
			m.Name, reason, v.healthyWithout(m.Name), len(v.voters)-1)}, true
	}
	if !v.availableWithout(m.Name) {
		return Action{Kind: Wait, Name: m.Name, Reason: fmt.Sprintf(
			"Waiting for another ready API server before removing %s (%s)", m.Name, reason)}, true
	}
	if next, ok := v.successor(m.Name); ok && m.Leader && m.Healthy {
		return moveLeader(m, next, reason), true
	}
	if m.Unproven != "" && v.hasVolume(m.Name) && !v.claims[m.Name].Kept {
		return Action{Kind: KeepClaim, Name: m.Name, Reason: m.Unproven}, true
	}
	return Action{Kind: RemoveMember, Name: m.Name, ID: m.ID, Reason: reason}, true
}

func moveLeader(from, to Member, reason string) Action {
	return Action{Kind: MoveLeader, Name: from.Name, ID: from.ID, To: to.Name, ToID: to.ID, Reason: reason}
}
