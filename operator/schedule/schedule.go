// Package schedule computes the times of cron schedules and the periods that begin at them. Its functions are pure: time is an
// argument.
package schedule

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // images need no tz database

	"github.com/robfig/cron/v3"
)

// Schedule is a parsed cron schedule.
type Schedule struct{ schedule cron.Schedule }

// Parse parses a cron expression, as CronJobs do, and the name of a time zone. The default is UTC. Unlike CronJobs it rejects
// intervals (@every): their times depend on when they are evaluated.
func Parse(expression, timeZone string) (Schedule, error) {
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
	fields, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return Schedule{}, fmt.Errorf("schedule %q: intervals are not supported; use fields, such as 0 */6 * * *", expression)
	}
	fields.Location = zone
	return Schedule{fields}, nil
}

// Next returns the first scheduled time after t, or zero if there is none, as for February 30.
func (s Schedule) Next(t time.Time) time.Time { return s.schedule.Next(t) }

// maxMissed bounds the scheduled times that are examined at once.
const maxMissed = 1000

// Last returns the last scheduled time in (after, now], or zero.
func (s Schedule) Last(after, now time.Time) time.Time {
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

// Window is a period that recurs.
type Window struct {
	Starts   Schedule
	Duration time.Duration
}

// opening returns the first time, starting at t, at which the window is open, or zero if there is none.
func (w Window) opening(t time.Time) time.Time {
	start := w.Starts.Next(t.Add(-w.Duration))
	if !start.IsZero() && !start.After(t) {
		return t
	}
	return start
}

// Opening returns the first time, starting at t, at which one of the windows is open: t itself if one is open or there
// are no windows, zero if none ever opens.
func Opening(windows []Window, t time.Time) time.Time {
	if len(windows) == 0 {
		return t
	}
	var first time.Time
	for _, window := range windows {
		if at := window.opening(t); !at.IsZero() && (first.IsZero() || at.Before(first)) {
			first = at
		}
	}
	return first
}
