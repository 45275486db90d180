package backup

import (
	"fmt"
	"time"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/schedule"
)

// Reasons of Health.
const (
	Current    = v1alpha1.ReasonBackupCurrent     // the newest backup completed on schedule
	NotDue     = v1alpha1.ReasonBackupNotDue      // no backup has been due yet
	Overdue    = v1alpha1.ReasonBackupOverdue     // a scheduled time has passed without a completed backup
	NoneExists = v1alpha1.ReasonNoCompletedBackup // none completed in time, or all were deleted
	LastFailed = v1alpha1.ReasonBackupFailed      // the newest finished backup has failed
	Suspended  = v1alpha1.ReasonScheduleSuspended // overdue because the schedule is suspended
	Hibernated = v1alpha1.ReasonHibernated        // none is due while the cluster is hibernated
)

// Record is the backup history of a schedule.
type Record struct {
	Now        time.Time
	Created    time.Time // of the schedule
	Suspended  bool
	Hibernated bool          // the data of the cluster does not change
	Grace      time.Duration // from a scheduled time to the completion of its backup
	Handled    bool          // a scheduled time was handled
	Pending    bool          // a backup is not finished
	Newest
}

// Newest has the completion times of the newest backups that exist. Zero: none.
type Newest struct {
	Succeeded time.Time
	Failed    time.Time
	Ahead     int // completed backups that are ignored because their time is in the future
}

// clockSkew is how far the clocks of two machines may differ.
const clockSkew = time.Minute

// Ahead reports whether a time is in the future by more than the clock skew.
func Ahead(t, now time.Time) bool { return t.After(now.Add(clockSkew)) }

// NewestOf returns the newest of the finished backups.
func NewestOf(backups []Finished, now time.Time) Newest {
	var n Newest
	for _, b := range backups {
		switch {
		case Ahead(b.At, now) && !b.Failed:
			n.Ahead++
		case Ahead(b.At, now):
		case b.Failed && b.At.After(n.Failed):
			n.Failed = b.At
		case !b.Failed && b.At.After(n.Succeeded):
			n.Succeeded = b.At
		}
	}
	return n
}

func (n Newest) String() string {
	text := "there is no completed backup"
	if !n.Succeeded.IsZero() {
		text = "the newest completed backup finished at " + n.Succeeded.UTC().Format(time.RFC3339)
	}
	if n.Ahead > 0 {
		text += fmt.Sprintf(", apart from %d with a time in the future", n.Ahead)
	}
	return text
}

// Health reports whether the newest backup is recent enough for its schedule, with a reason and a message.
func Health(s schedule.Schedule, r Record) (healthy bool, reason, message string) {
	newest := r.Newest.String()
	due := s.Last(created(s, r.Created, r.Now), r.Now.Add(-r.Grace))
	overdue := !due.IsZero() && r.Succeeded.Before(due)
	switch {
	case overdue && r.Hibernated && !r.Succeeded.IsZero():
		return true, Hibernated, "The cluster is hibernated: " + newest
	case overdue && r.Suspended:
		return false, Suspended, "The schedule is suspended: " + newest
	case overdue && r.Succeeded.IsZero():
		return false, NoneExists, fmt.Sprintf("The backup scheduled for %s should have completed by %s, but %s",
			due.UTC().Format(time.RFC3339), due.Add(r.Grace).UTC().Format(time.RFC3339), newest)
	case overdue:
		return false, Overdue, fmt.Sprintf("The backup scheduled for %s did not complete within %s: %s",
			due.UTC().Format(time.RFC3339), r.Grace, newest)
	case r.Failed.After(r.Succeeded):
		return false, LastFailed, fmt.Sprintf("The backup that finished at %s failed: %s", r.Failed.UTC().Format(time.RFC3339), newest)
	case r.Succeeded.IsZero() && r.Handled && !r.Pending:
		return false, NoneExists, "T" + newest[1:]
	case r.Succeeded.IsZero():
		return true, NotDue, "No backup is due yet"
	}
	return true, Current, "T" + newest[1:]
}
