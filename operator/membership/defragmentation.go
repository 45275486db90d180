package membership

import (
	"fmt"
	"slices"
	"time"
)

// Shares of the quota, in percent.
const (
	nearQuota          = 80 // size from which a database is defragmented for less unused space
	minUnusedNearQuota = 10 // unused space that justifies a defragmentation near the quota
	minUnusedForAlarm  = 5  // unused space that lets the member disarm the alarm NOSPACE, once it is released
)

// Database is the use of a member's database. All sizes are in bytes. The zero value means that the use is unknown.
type Database struct {
	Size    int64 // size of the database file
	InUse   int64 // part of Size that holds data
	Quota   int64
	NoSpace bool // any member of the cluster has raised the alarm NOSPACE
}

// unused returns the space that a defragmentation releases.
func (d Database) unused() int64 { return max(0, d.Size-d.InUse) }

// Defragmentation is the configuration of defragmentations, and the state of the defragmentation in progress.
type Defragmentation struct {
	Enabled     bool
	FreePercent int           // minimum unused share of the file, in percent
	MinFree     int64         // minimum unused space, in bytes
	Interval    time.Duration // minimum time between two defragmentations of the same member
	Now         time.Time
	RetryAfter  time.Time // earliest time of the next defragmentation after a failure
	Failures    int       // number of failures since the last success
	Held        string    // why only the alarm NOSPACE is a reason to defragment, such as a maintenance window; or ""

	// Member is the member that is being defragmented. It is persisted in the status before the request is sent, because
	// the operator may crash: a member does not respond during its defragmentation and finishes it without the operator,
	// and two members must never be defragmented at the same time.
	Member   string
	Running  bool   // this process waits for the response
	Finished bool   // this process has the response
	Failure  string // error of the finished defragmentation; "" if it succeeded
}

// awaitDefragmentation waits for the defragmentation in progress. Until it is finished, healthy members are neither
// restarted nor removed.
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

// defragment releases the unused space of databases to the file system, one member at a time. The leader is last, after
// it has transferred its leadership. A defragmentation begins only while no other change is in progress and the other
// voters are a quorum.
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
	// Each failure selects the next candidate, so that a member whose defragmentation always fails, for example on a full
	// volume, does not delay the other members forever. After a failure, the selection does not depend on the leader,
	// because moving the leadership must not change it.
	m := candidates[d.Failures%len(candidates)]
	if follower := slices.IndexFunc(candidates, func(m Member) bool { return !m.Leader }); d.Failures == 0 &&
		follower >= 0 {
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
	case db.NoSpace && db.Quota > 0 && db.unused() > share(minUnusedForAlarm) && db.Size > share(100-minUnusedForAlarm):
		return "the alarm NOSPACE is raised, and " + unused
	case db.NoSpace && db.Quota == 0 && db.unused() > db.Size/100*minUnusedNearQuota &&
		d.Now.Sub(m.Defragmented) >= d.Interval:
		// It is unknown whether this disarms the alarm, so try at most once per interval.
		return "the alarm NOSPACE is raised, the quota is unknown, and " + unused
	case d.Held != "" || v.rolloutBlocked() != "" || v.outdated() && v.RolloutHeld == "":
		return ""
	case d.Now.Sub(m.Defragmented) < d.Interval:
		return ""
	case db.Quota > 0 && db.Size >= share(nearQuota) && db.unused() >= share(minUnusedNearQuota):
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
