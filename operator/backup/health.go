package backup

import (
	"fmt"
	"time"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/schedule"
)

// Reasons that Health returns.
const (
	Current    = v1alpha1.ReasonBackupCurrent     // the newest completed backup is recent enough for the schedule
	NotDue     = v1alpha1.ReasonBackupNotDue      // no backup is due yet
	Overdue    = v1alpha1.ReasonBackupOverdue     // a backup was due, and the newest completed one is older
	NoneExists = v1alpha1.ReasonNoCompletedBackup // a backup was due, or has failed, and no completed one exists
	LastFailed = v1alpha1.ReasonBackupFailed      // the newest finished backup has failed
	Suspended  = v1alpha1.ReasonScheduleSuspended // a backup was due, and the schedule is suspended
	Hibernated = v1alpha1.ReasonHibernated        // a backup was due, but the cluster is hibernated
)

// Record is the input of Health: the backup history of a schedule.
type Record struct {
	Now        time.Time
	Created    time.Time // when the schedule was created
	Suspended  bool
	Hibernated bool          // the cluster is hibernated, so its data does not change
	Grace      time.Duration // time from a scheduled time until its backup has to be complete
	Handled    bool          // a scheduled time has been handled
	Pending    bool          // a backup is unfinished
	Newest
}

// Newest describes the newest finished backups that exist. A zero time means that there is none.
type Newest struct {
	Succeeded time.Time // when the newest completed backup finished
	Failed    time.Time // when the newest failed backup failed
	Ahead     int       // number of completed backups that are ignored because their time is in the future
}

// clockSkew is the difference between the clocks of two machines that is tolerated.
const clockSkew = time.Minute

// Ahead reports whether a time lies in the future by more than clockSkew.
func Ahead(t, now time.Time) bool { return t.After(now.Add(clockSkew)) }

// NewestOf returns the newest completed and the newest failed backup. It ignores backups whose time lies in the future:
// a machine with a wrong clock has recorded them, and they would count as recent for too long.
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

// Health reports whether the newest completed backup is recent enough for the schedule: not older than the last
// scheduled time whose grace has passed. It returns the reason and the message of the condition BackupReady.
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
		return false, LastFailed, fmt.Sprintf("The backup that finished at %s failed: %s",
			r.Failed.UTC().Format(time.RFC3339), newest)
	case r.Succeeded.IsZero() && r.Handled && !r.Pending:
		return false, NoneExists, "T" + newest[1:]
	case r.Succeeded.IsZero():
		return true, NotDue, "No backup is due yet"
	}
	return true, Current, "T" + newest[1:]
}
