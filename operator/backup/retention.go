package backup

import (
	"cmp"
	"slices"
	"time"
)

// Finished is a backup that is completed or has failed.
type Finished struct {
	Name   string
	At     time.Time
	Failed bool
}

// Limits bound the number and the age of the backups that a schedule keeps.
type Limits struct {
	Count  *int          // maximum number of completed backups; nil: no limit
	Age    time.Duration // maximum age of completed backups; 0: no limit
	Failed int           // maximum number of failed backups
}

// Expired returns the names of the backups beyond the limits, the oldest first. The newest completed backup never
// expires: a schedule whose backups have failed for a long time must not delete the last good one. Backups whose time
// lies in the future because of clock skew are counted separately, because their order relative to the other backups is
// unknown.
func Expired(backups []Finished, limits Limits, now time.Time) []string {
	newestFirst := slices.SortedFunc(slices.Values(backups), func(a, b Finished) int {
		return cmp.Or(b.At.Compare(a.At), cmp.Compare(b.Name, a.Name))
	})
	var expired []string
	completed, failed := map[bool]int{}, map[bool]int{} // by whether the time of the backups lies in the future
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
