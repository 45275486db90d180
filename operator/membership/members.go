package membership

import (
	"fmt"
	"slices"
)

// found brings the first members up together. Nothing is stored yet that could be lost; all claims are made before any
// pod, so that afterwards a missing claim always means a lost one.
func (v *view) found() (Action, bool) {
	if len(v.Intent.Founders) == 0 {
		names := v.founders()
		if len(names) == 0 {
			return Action{Kind: Wait, Reason: "waiting for the claims of a former cluster to go"}, true
		}
		return Action{Kind: Found, Names: names, Reason: "a new cluster"}, true
	}
	if v.Reached {
		return Action{Kind: Formed, Reason: "a quorum of the founders answers"}, true
	}
	for _, name := range v.Intent.Founders {
		if _, ok := v.claims[name]; !ok {
			return Action{Kind: CreateClaim, Name: name, Reason: "founder"}, true
		}
	}
	for _, name := range v.Intent.Founders {
		if action, ok := v.restore(name, "founder", true); ok {
			return action, true
		}
	}
	return Action{Kind: Wait, Reason: "the founders have not formed a cluster yet"}, true
}

// founders are the owners of claims that are there already, should the intent have been lost with the status, or new ones.
func (v *view) founders() []string {
	var names []string
	for _, claim := range v.Claims {
		if v.usable(claim.Name) {
			names = append(names, claim.Name)
		}
	}
	for next := v.nextOrdinal(); len(v.Claims) == 0 && len(names) < v.Voters; next++ {
		names = append(names, Name(v.Cluster, next))
	}
	return names
}

// survive does without a quorum what cannot make anything worse: members that have their claims are started again, and if
// that was not enough for a while, from the present spec.
func (v *view) survive() (Action, bool) {
	for _, claim := range v.Claims {
		if action, ok := v.restore(claim.Name, "no quorum", v.Silent); ok && v.usable(claim.Name) {
			return action, true
		}
	}
	return Action{Kind: Wait, Reason: "etcd has no quorum"}, true
}

// restore gives a member whose claim is there its pod again. It is for times without a quorum: renewing, it also replaces a
// pod that is not ready and was made for another spec, which may be what stands in the way.
func (v *view) restore(name, reason string, renewing bool) (Action, bool) {
	pod, ok := v.pods[name]
	switch {
	case !ok && v.usable(name):
		return Action{Kind: CreatePod, Name: name, Reason: reason}, true
	case ok && !pod.Terminating && pod.Failed:
		return Action{Kind: DeletePod, Name: name, Reason: "it ended"}, true
	case ok && !pod.Terminating && renewing && pod.Outdated && !pod.Ready:
		return Action{Kind: DeletePod, Name: name, Reason: "not ready, and made for another spec"}, true
	}
	return Action{}, false
}

// join takes the one learner from intent to voter, or gives it up.
func (v *view) join() (Action, bool) {
	for _, m := range v.learners {
		if m.Name != v.Intent.Joining {
			return Action{Kind: RemoveMember, Name: m.Name, ID: m.ID, Reason: "a learner that nobody is adding"}, true
		}
	}
	if v.Intent.Joining == "" {
		return Action{}, false
	}
	m, ok := v.member(v.Intent.Joining)
	switch {
	case !ok && (len(v.voters) >= v.wanted() || v.Intent.Overdue):
		return Action{Kind: Settle, Name: v.Intent.Joining, Reason: "given up"}, true
	case !ok && v.healthyWithout("") == len(v.voters):
		return Action{Kind: AddLearner, Name: v.Intent.Joining, Reason: fmt.Sprintf("%d of %d voters", len(v.voters), v.wanted())}, true
	case !ok:
		return Action{}, false // an unhealthy voter comes back, or is replaced, first
	case !m.Learner:
		return Action{Kind: Settle, Name: m.Name, Reason: "it votes"}, true
	}
	return v.raise(m), true
}

// raise makes a learner a voter once it is up to date.
func (v *view) raise(m Member) Action {
	switch {
	case len(v.voters) >= v.wanted():
		return Action{Kind: RemoveMember, Name: m.Name, ID: m.ID, Reason: "no longer wanted"}
	case v.Intent.Overdue:
		return Action{Kind: RemoveMember, Name: m.Name, ID: m.ID, Reason: "it did not catch up in time"}
	case !m.Started || !m.Healthy:
		return Action{Kind: Wait, Name: m.Name, Reason: "waiting for " + m.Name + " to start"}
	case !v.caughtUp(m):
		return Action{Kind: Wait, Name: m.Name, Reason: "waiting for " + m.Name + " to catch up"}
	case v.healthyWithout("")+1 < Quorum(len(v.voters)+1):
		return Action{Kind: Wait, Name: m.Name, Reason: "too few healthy voters to promote " + m.Name}
	}
	return Action{Kind: Promote, Name: m.Name, ID: m.ID, Reason: "it has caught up"}
}

// caughtUp is etcd's own measure: nine tenths of what the leader has.
func (v *view) caughtUp(learner Member) bool {
	for _, m := range v.voters {
		if m.Leader {
			return float64(learner.Applied) >= 0.9*float64(m.Applied)
		}
	}
	return false
}

// replace removes a voter that will not come back; grow then adds another. One without a volume is not there to stay even
// if its process still answers; those that do not answer go first.
func (v *view) replace() (Action, bool) {
	var victims []Member
	for _, m := range v.voters {
		switch {
		case !v.broken(m) || len(v.voters) == 1:
		case m.Healthy:
			victims = append(victims, m)
		default:
			victims = slices.Insert(victims, 0, m)
		}
	}
	if len(victims) == 0 {
		return Action{}, false
	}
	reason := "its volume claim is gone"
	if v.usable(victims[0].Name) {
		reason = "it has been unhealthy for too long"
	}
	return v.depart(victims[0], reason)
}

// shrink removes voters beyond the wanted ones: unhealthy ones first, then the highest ordinal.
func (v *view) shrink() (Action, bool) {
	if len(v.voters) <= v.Voters {
		return Action{}, false
	}
	victim := v.voters[len(v.voters)-1]
	for _, m := range v.voters {
		if !m.Healthy {
			victim = m
		}
	}
	return v.depart(victim, fmt.Sprintf("%d of %d voters", len(v.voters), v.Voters))
}

func (v *view) grow() (Action, bool) {
	if len(v.voters) >= v.wanted() || v.Intent.Joining != "" {
		return Action{}, false
	}
	return Action{Kind: Reserve, Name: Name(v.Cluster, v.nextOrdinal()), Reason: fmt.Sprintf("%d of %d voters", len(v.voters), v.wanted())}, true
}

// wanted is the number of voters to reach. A single voter that still answers but has lost its volume is rescued by
// giving it a second one, after which it can go.
func (v *view) wanted() int {
	if len(v.voters) == 1 && v.broken(v.voters[0]) {
		return max(2, v.Voters)
	}
	return v.Voters
}
