package membership

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
)

// view is an observation sorted by ordinal, with lookups by name. Invariant: voters and learners together are Members.
type view struct {
	Observation
	voters   []Member
	learners []Member
	pods     map[string]Pod   // by name; a pod has the name of its replica
	claims   map[string]Claim // by name of the member
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

// Name returns the name of the replica with an ordinal.
func Name(cluster string, ordinal int) string { return cluster + "-" + strconv.Itoa(ordinal) }

// Ordinal returns the ordinal in a replica's name, or -1 if the name is not CLUSTER-ORDINAL.
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

// compare orders names by ordinal, so that demo-9 comes before demo-10.
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

// hasVolume reports whether a member's claim exists, can be mounted, and is the claim on which the member has started.
func (v *view) hasVolume(name string) bool { return v.mountable(name) && !v.claims[name].Replaced }

// mountable reports whether the claim of a member exists and can be mounted. Its volume may contain other data, if the
// claim was deleted and created again.
func (v *view) mountable(name string) bool {
	claim, ok := v.claims[name]
	return ok && !claim.Lost && !claim.Terminating
}

// needsReplacement reports whether a voter cannot recover with its data.
func (v *view) needsReplacement(m Member) bool { return m.Lost || m.Refuses || !v.hasVolume(m.Name) }

// healthyWithout returns the number of healthy voters other than name.
func (v *view) healthyWithout(name string) int {
	n := 0
	for _, m := range v.voters {
		if m.Healthy && m.Name != name {
			n++
		}
	}
	return n
}

// availableWithout reports whether removing a replica leaves the API available: the replica is not ready, or another
// replica is.
func (v *view) availableWithout(name string) bool {
	return !v.pods[name].Ready || slices.ContainsFunc(v.Pods, func(pod Pod) bool { return pod.Ready && pod.Name != name })
}

// removable reports whether the healthy voters are a quorum of the membership without m. etcd's own check
// (mayRemoveMember with strict-reconfig-check) is weaker if m is down: the remaining members must have been started
// once, but need not be healthy.
func (v *view) removable(m Member) bool {
	return len(v.voters) > 1 && v.healthyWithout(m.Name) >= Quorum(len(v.voters)-1)
}

// restartable reports whether etcd keeps its quorum while a member restarts. A single voter is always restartable,
// because there is no other way to update it.
func (v *view) restartable(name string) bool {
	m, ok := v.member(name)
	if !ok || m.Learner || !m.Healthy || len(v.voters) == 1 {
		return true
	}
	return v.healthyWithout(name) >= Quorum(len(v.voters))
}

// successor returns the voter to which the leadership moves: a healthy voter with its volume, preferably a voter whose
// pod is up to date and does not have to restart.
func (v *view) successor(leader string) (Member, bool) {
	var best Member
	found := false
	for _, m := range v.voters {
		if m.Name == leader || !m.Healthy || v.needsReplacement(m) {
			continue
		}
		if !found || v.pods[best.Name].Outdated && !v.pods[m.Name].Outdated {
			best, found = m, true
		}
	}
	return best, found
}

// nextOrdinal returns an ordinal that no member has ever had and no replica has now.
func (v *view) nextOrdinal() int {
	next := v.Intent.NextOrdinal
	names := slices.Concat([]string{v.Intent.JoiningMember}, v.Intent.InitialMembers, v.ReleasedNames)
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
