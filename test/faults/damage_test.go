package faults

import (
	"fmt"
	"maps"
	"slices"
	"sync"
)

// damage is what nemeses have done to the data of members, and which members have found that acknowledged writes are
// lost.
//
// A cluster may lose acknowledged writes only after more than a minority of its members had damaged data at the same
// time. Before that, a member that stops with config.LostWritesExitCode is a violation: of the cluster, which has lost
// them, or of the member, which is wrong about that.
type damage struct {
	mu       sync.Mutex
	present  map[int]bool // replicas whose data is damaged and whose member has not been replaced since
	most     []int        // replicas with damaged data at the time when there were most
	refusals []string
	untrue   []error // claims that data is damaged which is not
}

// begin notes that the data of a replica is damaged.
func (d *damage) begin(r *replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.present == nil {
		d.present = map[int]bool{}
	}
	d.present[r.index] = true
	if len(d.present) > len(d.most) {
		d.most = slices.Sorted(maps.Keys(d.present))
	}
}

// end notes that a replica has a new member.
func (d *damage) end(r *replica) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.present, r.index)
}

// refuse notes that the member of a replica has stopped because the leader lacks acknowledged writes.
func (d *damage) refuse(r *replica, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.refusals = append(d.refusals, fmt.Sprintf("replica %d: %s", r.index, reason))
}

// claim notes that the member of a replica has stopped because its data is damaged, or is not its own.
func (d *damage) claim(r *replica, code int, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.present[r.index] {
		d.untrue = append(d.untrue, fmt.Errorf("replica %d exited with code %d, and no nemesis had damaged its data: %s",
			r.index, code, reason))
	}
}

// check returns refusals that damage explains, and what is a violation.
func (d *damage) check(replicas int) (explained, violations []error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	minority := (replicas - 1) / 2
	violations = slices.Clone(d.untrue)
	for _, refusal := range d.refusals {
		if len(d.most) > minority {
			explained = append(explained, fmt.Errorf("the data of %d of %d members, %v, was damaged at the same time: %s",
				len(d.most), replicas, d.most, refusal))
			continue
		}
		violations = append(violations, fmt.Errorf("acknowledged writes are lost, or a member is wrong about that, although "+
			"not more than a minority of %d members had damaged data, %v: %s", replicas, d.most, refusal))
	}
	return explained, violations
}
