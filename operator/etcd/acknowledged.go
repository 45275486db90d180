package etcd

import (
	"maps"
	"time"
)

// Acknowledged is a state that a member has reported. Raft requires that the member never falls behind this state,
// because it may have voted for, and clients may have read, everything up to it.
type Acknowledged struct {
	Index    uint64 // index of the last applied raft entry
	Term     uint64 // raft term
	Revision int64  // revision of the last applied change
	Time     time.Time
}

// Newest returns the later of two states of the same member.
func (a Acknowledged) Newest(other Acknowledged) Acknowledged {
	if other.Index > a.Index || other.Index == a.Index && other.Term > a.Term {
		return other
	}
	return a
}

// Acknowledge records the states that the members of a cluster report, by member ID. A member ID is not reused by a new
// cluster with the same name, because the initial cluster token contains the UID of the ApiServerCluster.
func (p *Pool) Acknowledge(cluster string, members []Member, now time.Time) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	former := p.acknowledged[cluster]
	next := make(map[uint64]Acknowledged, len(members))
	for _, m := range members {
		state := Acknowledged{Index: m.Applied, Term: m.Term, Revision: m.Revision, Time: now}
		next[m.ID] = former[m.ID].Newest(state)
	}
	p.acknowledged[cluster] = next
}

// Acknowledged returns the newest state that each member of a cluster is known to have reached, by member ID. It knows
// only states that this process has observed.
func (p *Pool) Acknowledged(cluster string) map[uint64]Acknowledged {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return maps.Clone(p.acknowledged[cluster])
}
