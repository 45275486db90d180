// Package backup decides when backups are created, retried, deleted, overdue, and required before an upgrade. Its
// functions are pure: the caller passes the current time and the observed state, and executes the decision.
package backup

import (
	"fmt"
	"time"

	"quorate.dev/operator/schedule"
)

// Concurrency selects what happens at a scheduled time while an earlier backup is unfinished. Its values are the same
// as in the API, and as in a CronJob.
type Concurrency string

// The concurrency policies.
const (
	Allow   Concurrency = "Allow"
	Forbid  Concurrency = "Forbid"
	Replace Concurrency = "Replace"
)

// Observation is the input of Decide: the state of a schedule.
type Observation struct {
	Now     time.Time
	Created time.Time // when the schedule was created
	Last    time.Time // the last scheduled time that was handled; zero: none
	Suspend bool
	// Hibernated means that the cluster has no running members, so that no backup is possible. The last scheduled time in
	// the hibernation is handled after it.
	Hibernated bool
	Deadline   time.Duration // how long after the scheduled time a backup may start; 0: no limit
	Policy     Concurrency
	Active     []string // names of the unfinished backups, sorted
}

// Decision is the output of Decide.
type Decision struct {
	Handled time.Time // scheduled time to record as handled; zero: none is due
	Create  bool      // create the backup for Handled
	Delete  []string  // names of unfinished backups to delete before the creation
	Missed  string    // cause for which no backup is created for Handled, or ""
	Next    time.Time // next scheduled time; zero: none
}

// created returns the creation time of a schedule, as recorded in its metadata. If that time is later than the next
// scheduled time, the API server that recorded it had a wrong clock; created then returns a time one year ago, because
// otherwise the schedule would create no backups until the recorded time. Smaller differences are tolerated.
func created(s schedule.Schedule, recorded, now time.Time) time.Time {
	if recorded.After(now) && recorded.After(s.Next(now)) {
		return now.AddDate(-1, 0, 0)
	}
	return recorded
}

// Decide returns what to do about the last scheduled time that was not handled yet. It skips all earlier times, because
// one backup of the present state is enough.
func Decide(s schedule.Schedule, o Observation) Decision {
	d := Decision{Next: s.Next(o.Now)}
	if o.Suspend {
		d.Next = time.Time{}
		return d
	}
	if o.Hibernated {
		return d
	}
	after := created(s, o.Created, o.Now)
	if o.Last.After(after) && !o.Last.After(s.Next(o.Now)) { // a later time was recorded with a wrong clock
		after = o.Last
	}
	due := s.Last(after, o.Now)
	switch {
	case due.IsZero():
		return d
	case o.Deadline > 0 && o.Now.Sub(due) > o.Deadline:
		d.Missed = fmt.Sprintf("the starting deadline passed %s ago", (o.Now.Sub(due) - o.Deadline).Round(time.Second))
	case len(o.Active) > 0 && o.Policy == Replace:
		d.Create, d.Delete = true, o.Active
	case len(o.Active) > 0 && o.Policy != Allow:
		d.Missed = fmt.Sprintf("backup %s is not finished", o.Active[0])
	default:
		d.Create = true
	}
	d.Handled = due
	return d
}
