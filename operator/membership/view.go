package membership

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// view is an observation in the order of ordinals, with lookups.
type view struct {
	Observation
	voters   []Member
	learners []Member
	pods     map[string]Pod
	claims   map[string]Claim
}

func newView(o Observation) *view {
	v := &view{Observation: o, pods: map[string]Pod{}, claims: map[string]Claim{}}
	v.Members = slices.SortedFunc(slices.Values(o.Members), func(a, b Member) int { return v.compare(a.Name, b.Name) })
	v.Pods = slices.SortedFunc(slices.Values(o.Pods), func(a, b Pod) int { return v.compare(a.Name, b.Name) })
	v.Claims = slices.SortedFunc(slices.Values(o.Claims), func(a, b Claim) int { return v.compare(a.Name, b.Name) })
	for _, m := range v.Members {
		if m.Learner {
			v.learners = append(v.learners, m)
		} else {
			v.voters = append(v.voters, m)
		}
	}
	for _, pod := range v.Pods {
		v.pods[pod.Name] = pod
	}
	for _, claim := range v.Claims {
		v.claims[claim.Name] = claim
	}
	return v
}

// Name of the replica with an ordinal.
func Name(cluster string, ordinal int) string { return cluster + "-" + strconv.Itoa(ordinal) }

// Ordinal of a replica's name; -1 when the name is not of the cluster.
func Ordinal(cluster, name string) int {
	text, ok := strings.CutPrefix(name, cluster+"-")
	if !ok {
		return -1
	}
	ordinal, err := strconv.Atoi(text)
	if err != nil || ordinal < 0 || Name(cluster, ordinal) != name {
		return -1
	}
	return ordinal
}

// compare orders names by number, never by text: demo-9 comes before demo-10.
func (v *view) compare(a, b string) int {
	return cmp.Or(cmp.Compare(Ordinal(v.Cluster, a), Ordinal(v.Cluster, b)), cmp.Compare(a, b))
}

func (v *view) member(name string) (Member, bool) {
	i := slices.IndexFunc(v.Members, func(m Member) bool { return m.Name == name })
	if i < 0 {
		return Member{}, false
	}
	return v.Members[i], true
}

// usable tells whether a member's claim is there to start it from.
func (v *view) usable(name string) bool {
	claim, ok := v.claims[name]
	return ok && !claim.Lost && !claim.Terminating
}

// broken tells whether a voter will not come back, or only without what it promised to remember.
func (v *view) broken(m Member) bool { return m.Lost || !v.usable(m.Name) }

// healthyWithout counts the healthy voters besides one.
func (v *view) healthyWithout(name string) int {
	n := 0
	for _, m := range v.voters {
		if m.Healthy && m.Name != name {
			n++
		}
	}
	return n
}

// servesWithout tells whether clients find as much without a replica as with it: nothing, or another one.
func (v *view) servesWithout(name string) bool {
	return !v.pods[name].Ready || slices.ContainsFunc(v.Pods, func(pod Pod) bool { return pod.Ready && pod.Name != name })
}

// removable tells whether the voters left after a removal still make a quorum.
func (v *view) removable(m Member) bool {
	return len(v.voters) > 1 && v.healthyWithout(m.Name) >= Quorum(len(v.voters)-1)
}

// restartable tells whether the cluster keeps its quorum while a member restarts. A single voter has to go down once.
func (v *view) restartable(name string) bool {
	m, ok := v.member(name)
	if !ok || m.Learner || !m.Healthy || len(v.voters) == 1 {
		return true
	}
	return v.healthyWithout(name) >= Quorum(len(v.voters))
}

// successor is the voter that should lead instead: healthy, whole, already up to date if there is one.
func (v *view) successor(leader string) (Member, bool) {
	var best Member
	found := false
	for _, m := range v.voters {
		if m.Name == leader || !m.Healthy || v.broken(m) {
			continue
		}
		if !found || v.pods[best.Name].Outdated && !v.pods[m.Name].Outdated {
			best, found = m, true
		}
	}
	return best, found
}

// depart is the next step of a voter's removal: a leader hands over first.
func (v *view) depart(m Member, reason string) (Action, bool) {
	if !v.removable(m) {
		return Action{Kind: Wait, Name: m.Name, Reason: fmt.Sprintf("%s (%s) cannot be removed: %d healthy voters would remain of %d",
			m.Name, reason, v.healthyWithout(m.Name), len(v.voters)-1)}, true
	}
	if !v.servesWithout(m.Name) {
		return Action{Kind: Wait, Name: m.Name, Reason: fmt.Sprintf("%s (%s) is the only one that serves", m.Name, reason)}, true
	}
	if next, ok := v.successor(m.Name); ok && m.Leader && m.Healthy {
		return Action{Kind: MoveLeader, Name: m.Name, ID: m.ID, To: next.Name, ToID: next.ID, Reason: reason}, true
	}
	return Action{Kind: RemoveMember, Name: m.Name, ID: m.ID, Reason: reason}, true
}

// nextOrdinal was never used by a member, nor is it by any replica now.
func (v *view) nextOrdinal() int {
	next := v.Intent.Next
	names := append([]string{v.Intent.Joining}, v.Intent.Founders...)
	for _, m := range v.Members {
		names = append(names, m.Name)
	}
	for _, pod := range v.Pods {
		names = append(names, pod.Name)
	}
	for _, claim := range v.Claims {
		names = append(names, claim.Name)
	}
	for _, name := range names {
		next = max(next, Ordinal(v.Cluster, name)+1)
	}
	return next
}
