// Package schedule computes the times of cron schedules, and the windows of time that begin at these times. It backs
// the schedules of backups and the maintenance windows of clusters. All functions are pure: the caller passes the
// current time.
package schedule

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // embeds the time zone database, so that images need none

	"github.com/robfig/cron/v3"
)

// Schedule is a parsed cron schedule.
type Schedule struct{ schedule cron.Schedule }

// Parse parses a cron expression in the syntax of a CronJob and the name of a time zone, by default UTC. Unlike a
// CronJob, Parse rejects intervals (@every): their times depend on the moment at which the schedule is evaluated, so a
// restart of the operator would shift them.
func Parse(expression, timeZone string) (Schedule, error) {
	if strings.Contains(expression, "TZ") {
		return Schedule{}, fmt.Errorf("schedule %q: use timeZone instead of TZ or CRON_TZ", expression)
	}
	location, err := time.LoadLocation(timeZone) // "" means UTC
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
	fields.Location = location
	return Schedule{fields}, nil
}

// Next returns the first scheduled time after t, or the zero time if the schedule never fires, such as on February 30.
func (s Schedule) Next(t time.Time) time.Time { return s.schedule.Next(t) }

// longestGap is longer than the time between two scheduled times: February 29 is the rarest day.
const longestGap = 10 * 366 * 24 * time.Hour

// Last returns the last scheduled time in (after, now], or the zero time if that period has none. The number of
// scheduled times that Last examines grows with the logarithm of the period, because a schedule may have been suspended
// for years.
func (s Schedule) Last(after, now time.Time) time.Time {
	due := func(from time.Time) bool {
		t := s.Next(from)
		return !t.IsZero() && !t.After(now)
	}
	// Search in a period that ends now, and double it until it contains a scheduled time. Earlier times cannot be the
	// last one.
	from := now.Add(-time.Minute)
	for from.After(after) && !due(from) && now.Sub(from) < longestGap {
		from = now.Add(-2 * now.Sub(from))
	}
	if from.Before(after) {
		from = after
	}
	if !due(from) {
		return time.Time{}
	}
	// Invariant: (from, now] contains a scheduled time, and (to, now] contains none.
	for to := now; ; {
		last := s.Next(from)
		if !due(last) {
			return last
		}
		if middle := last.Add(to.Sub(last) / 2); due(middle) {
			from = middle
		} else {
			from, to = last, middle
		}
	}
}

// Window is a recurring period of time, such as a maintenance window. It opens at each time of Starts, and stays open
// for Duration.
type Window struct {
	Starts   Schedule
	Duration time.Duration
}

// opening returns the first time at or after t at which the window is open, or the zero time if the window never opens
// again.
func (w Window) opening(t time.Time) time.Time {
	start := w.Starts.Next(t.Add(-w.Duration))
	if !start.IsZero() && !start.After(t) {
		return t
	}
	return start
}

// Opening returns the first time at or after t at which any of the windows is open. It returns t itself if a window is
// open at t or windows is empty, and the zero time if no window ever opens again.
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
