// Package backup decides when backups are created, retried and deleted. Its functions are pure: time is an argument.
package backup

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // images need no tz database

	"github.com/robfig/cron/v3"
)

// Schedule is a parsed cron schedule.
type Schedule struct{ schedule cron.Schedule }

// ParseSchedule parses a cron expression, as CronJobs do, and the name of a time zone. The default is UTC.
func ParseSchedule(expression, timeZone string) (Schedule, error) {
	if strings.Contains(expression, "TZ") {
		return Schedule{}, fmt.Errorf("schedule %q: use timeZone instead of TZ or CRON_TZ", expression)
	}
	zone, err := time.LoadLocation(timeZone) // "" is UTC
	if err != nil || strings.EqualFold(timeZone, "local") {
		return Schedule{}, fmt.Errorf("timeZone %q is unknown", timeZone)
	}
	parsed, err := cron.ParseStandard(expression)
	if err != nil {
		return Schedule{}, fmt.Errorf("schedule %q: %w", expression, err)
	}
	if fields, ok := parsed.(*cron.SpecSchedule); ok {
		fields.Location = zone
	}
	return Schedule{parsed}, nil
}

// Next returns the first scheduled time after t, or zero if there is none, as for February 30.
func (s Schedule) Next(t time.Time) time.Time { return s.schedule.Next(t) }

// maxMissed bounds the scheduled times that are examined at once.
const maxMissed = 1000

// last returns the last scheduled time in (after, now], or zero.
func (s Schedule) last(after, now time.Time) time.Time {
	// A schedule may have been suspended for years: halve the period until few times are left.
	for from := now.Add(-time.Minute); from.After(after); from = now.Add(-2 * now.Sub(from)) {
		if t := s.Next(from); !t.IsZero() && !t.After(now) {
			after = from
			break
		}
	}
	var last time.Time
	for n, t := 0, s.Next(after); n < maxMissed && !t.IsZero() && !t.After(now); n, t = n+1, s.Next(t) {
		last = t
	}
	return last
}

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
	Now      time.Time
	Created  time.Time // of the schedule
	Last     time.Time // last scheduled time that was handled; zero: none
	Suspend  bool
	Deadline time.Duration // for starting after the scheduled time; 0: none
	Policy   Concurrency
	Active   []string // unfinished backups
}

// Decision is what to do now.
type Decision struct {
	Handled time.Time // scheduled time to record; zero: none is due
	Create  bool      // create the backup of Handled
	Delete  []string  // unfinished backups to delete first
	Missed  string    // why Handled is skipped
	Next    time.Time // next scheduled time; zero: none
}

// Decide returns what to do for the last scheduled time that was not handled. Earlier ones are dropped: several backups
// of the same moment have no value.
func (s Schedule) Decide(o Observation) Decision {
	d := Decision{Next: s.Next(o.Now)}
	if o.Suspend {
		d.Next = time.Time{}
		return d
	}
	after := o.Created
	if o.Last.After(after) {
		after = o.Last
	}
	due := s.last(after, o.Now)
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
