// Package backup decides when backups are created, retried and deleted. Its functions are pure: time is an argument.
package backup

import (
	"fmt"
	"time"

	"quorate.dev/operator/schedule"
)

// Concurrency selects what happens at a scheduled time while a backup runs. Values are those of the API.
type Concurrency string

// The concurrency policies.
const (
	Allow   Concurrency = "Allow"
	Forbid  Concurrency = "Forbid"
	Replace Concurrency = "Replace"
)

// Observation is the input of Decide.
type Observation struct {
	Now     time.Time
	Created time.Time // of the schedule
	Last    time.Time // last scheduled time that was handled; zero: none
	Suspend bool
	// Hibernated: the cluster has no running members, so no backup is possible. The last scheduled time is handled afterwards.
	Hibernated bool
	Deadline   time.Duration // for starting after the scheduled time; 0: none
	Policy     Concurrency
	Active     []string // unfinished backups
}

// Decision is what to do now.
type Decision struct {
	Handled time.Time // scheduled time to record; zero: none is due
	Create  bool      // create the backup of Handled
	Delete  []string  // unfinished backups to delete first
	Missed  string    // why Handled is skipped
	Next    time.Time // next scheduled time; zero: none
}

// created returns the creation time of a schedule. If it is later than the next scheduled time, the clock that
// recorded it was wrong, and created returns a time one year ago. Smaller clock skew is tolerated.
func created(s schedule.Schedule, recorded, now time.Time) time.Time {
	if recorded.After(now) && recorded.After(s.Next(now)) {
		return now.AddDate(-1, 0, 0)
	}
	return recorded
}

// Decide returns what to do for the last scheduled time that was not handled. Earlier ones are skipped: one backup of
// the present state is enough.
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
	if o.Last.After(after) && !o.Last.After(s.Next(o.Now)) { // later times were recorded by a clock that was wrong
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
