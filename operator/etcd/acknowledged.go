package etcd

import (
	"maps"
	"time"
)

// Acknowledged is a state that a member has reported, and therefore must never fall behind.
type Acknowledged struct {
	Index    uint64 // of the last applied raft entry
	Term     uint64 // of raft
	Revision int64  // of the last applied change
	Time     time.Time
}

// Newest returns the later of two states of one member.
func (a Acknowledged) Newest(other Acknowledged) Acknowledged {
	if other.Index > a.Index || other.Index == a.Index && other.Term > a.Term {
		return other
	}
	return a
}

// Acknowledge remembers the states that the members of a cluster report. IDs of members are unique, also across former
// etcd clusters with the same name.
func (p *Pool) Acknowledge(cluster string, members []Member, now time.Time) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	known := p.acknowledged[cluster]
	next := make(map[uint64]Acknowledged, len(members))
	for _, m := range members {
		state := Acknowledged{Index: m.Applied, Term: m.Term, Revision: m.Revision, Time: now}
		next[m.ID] = known[m.ID].Newest(state)
	}
	p.acknowledged[cluster] = next
}

// Acknowledged returns the newest states that the members of a cluster are known to have reached, by ID. It knows what
// this process has observed.
func (p *Pool) Acknowledged(cluster string) map[uint64]Acknowledged {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return maps.Clone(p.acknowledged[cluster])
}
