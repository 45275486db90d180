package membership

import (
	"fmt"
	"slices"
	"time"
)

// Shares of the quota, in percent.
const (
	nearQuota   = 80 // size from which a database is defragmented for less unused space
	worthwhile  = 10 // unused space that justifies a defragmentation near the quota
	alarmRepair = 5  // unused space that lets the member disarm the alarm NOSPACE, once it is released
)

// Database is the use of a member's database, in bytes. The zero value is unknown.
type Database struct {
	Size    int64 // of the file
	InUse   int64 // of Size, that hold data
	Quota   int64
	NoSpace bool // the alarm NOSPACE is raised, by this member or another
}

// unused returns the space that a defragmentation releases.
func (d Database) unused() int64 { return max(0, d.Size-d.InUse) }

// Defragmentation is the configuration of defragmentations, and the one in progress.
type Defragmentation struct {
	Enabled     bool
	FreePercent int           // share of the file that is unused
	MinFree     int64         // unused bytes
	Interval    time.Duration // between two of the same member
	Now         time.Time
	RetryAfter  time.Time // earliest time after a failure
	Failures    int       // since the last success
	Held        string    // why only the alarm NOSPACE is a reason to defragment now, or ""

	// Member is being defragmented. It is persisted before the request, because two members must not be defragmented
	// at the same time, even after a crash: a member does not respond meanwhile, and finishes without the operator.
	Member   string
	Running  bool   // this process waits for the response
	Finished bool   // this process has the response
	Failure  string // of a finished one; "" if it succeeded
}

// awaitDefragmentation waits for the defragmentation in progress. Until then, healthy members are left alone.
func (v *view) awaitDefragmentation() (Action, bool) {
	d := v.Defragmentation
	if d.Member == "" {
		return Action{}, false
	}
	m, ok := v.member(d.Member)
	switch {
	case d.Finished:
		return Action{Kind: FinishDefragmentation, Name: d.Member, Reason: d.Failure}, true
	case d.Running:
		return Action{Kind: Wait, Name: d.Member, Reason: "Waiting for the defragmentation of " + d.Member}, true
	case !ok:
		return Action{Kind: FinishDefragmentation, Name: d.Member, Reason: "it is no longer a member"}, true
	case !m.Healthy || !v.restartable(d.Member):
		return Action{Kind: FinishDefragmentation, Name: d.Member, Reason: "it was interrupted"}, true
	}
	return Action{Kind: ResumeDefragmentation, Name: d.Member, ID: m.ID, Reason: "the operator has restarted"}, true
}

// defragment releases the unused space of databases to the file system, one member at a time. The leader is last,
// after it has moved its leadership. It runs only while nothing else changes and etcd keeps its quorum without the
// member.
func (v *view) defragment() (Action, bool) {
	d := v.Defragmentation
	if !d.Enabled || d.Now.Before(d.RetryAfter) {
		return Action{}, false
	}
	if v.healthyWithout("") < len(v.voters) { // a member whose response was lost may be busy with a defragmentation
		return Action{}, false
	}
	var candidates []Member
	for _, m := range v.voters {
		if v.fragmented(m) != "" && v.restartable(m.Name) {
			candidates = append(candidates, m)
		}
	}
	if len(candidates) == 0 {
		return Action{}, false
	}
	// Each failure selects another member, so that one that always fails, as on a full volume, does not delay the others
	// forever. The order does not depend on the leader then: moving the leadership must not change the selection.
	m := candidates[d.Failures%len(candidates)]
	if follower := slices.IndexFunc(candidates, func(m Member) bool { return !m.Leader }); d.Failures == 0 && follower >= 0 {
		m = candidates[follower]
	}
	if next, ok := v.successor(m.Name); ok && m.Leader {
		return moveLeader(m, next, "it will be defragmented next"), true
	}
	return Action{Kind: StartDefragmentation, Name: m.Name, ID: m.ID, Reason: v.fragmented(m)}, true
}

// fragmented returns why a member is defragmented now, or "".
func (v *view) fragmented(m Member) string {
	d, db := v.Defragmentation, m.Database
	share := func(percent int64) int64 { return db.Quota / 100 * percent }
	unused := fmt.Sprintf("%d of %d MiB are unused", db.unused()>>20, db.Size>>20)
	switch {
	case db.NoSpace && db.Quota > 0 && db.unused() > share(alarmRepair) && db.Size > share(100-alarmRepair):
		return "the alarm NOSPACE is raised, and " + unused
	case db.NoSpace && db.Quota == 0 && db.unused() > db.Size/100*worthwhile && d.Now.Sub(m.Defragmented) >= d.Interval:
		// It is unknown whether this disarms the alarm, so try at most once per interval.
		return "the alarm NOSPACE is raised, the quota is unknown, and " + unused
	case d.Held != "" || v.rolloutBlocked() != "" || v.outdated() && v.RolloutHeld == "":
		return ""
	case d.Now.Sub(m.Defragmented) < d.Interval:
		return ""
	case db.Quota > 0 && db.Size >= share(nearQuota) && db.unused() >= share(worthwhile):
		return "its database is near the quota, and " + unused
	case db.unused() >= d.MinFree && db.unused() >= db.Size/100*int64(d.FreePercent) && db.Size > 0:
		return unused
	}
	return ""
}

// outdated reports whether a pod has to restart for the rollout.
func (v *view) outdated() bool {
	for _, pod := range v.Pods {
		if pod.Outdated {
			return true
		}
	}
	return false
}
