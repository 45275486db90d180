package backup

import (
	"cmp"
	"slices"
	"time"
)

// Finished is a backup that is complete or has failed.
type Finished struct {
	Name   string
	At     time.Time
	Failed bool
}

// Limits bound the backups that are kept. Nil and zero: no limit.
type Limits struct {
	Count  *int          // completed backups
	Age    time.Duration // of completed backups
	Failed int           // failed backups
}

// Expired returns the backups beyond the limits, oldest first. The newest completed backup never expires: a schedule
// that fails for a long time must not delete the last good backup. Backups whose time is in the future, because of
// clock skew, are counted separately: their order relative to the others is unknown.
func Expired(backups []Finished, limits Limits, now time.Time) []string {
	newestFirst := slices.SortedFunc(slices.Values(backups), func(a, b Finished) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(b.Name, a.Name))
	})
	var expired []string
	completed, failed := map[bool]int{}, map[bool]int{} // by whether their time is in the future
	for _, b := range newestFirst {
		beyond, group := false, Ahead(b.At, now)
		if b.Failed {
			failed[group]++
			beyond = failed[group] > limits.Failed
		} else {
			completed[group]++
			beyond = completed[group] > 1 && (limits.Count != nil && completed[group] > *limits.Count ||
				limits.Age > 0 && now.Sub(b.At) > limits.Age)
		}
		if beyond {
			expired = append(expired, b.Name)
		}
	}
	slices.Reverse(expired)
	return expired
}
