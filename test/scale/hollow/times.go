package hollow

import (
	"slices"
	"time"
)

// unordered is the longest time by which events may be out of the order in which their changes were sent.
const unordered = 100 * time.Millisecond

// sendTimes recognizes events of changes that were not sent by this program. Controllers and the server itself change
// objects too, and leave the annotation of an earlier change. The time in it was seen before, or is older than the
// times of other events.
type sendTimes struct {
	recent [16]int64 // the last times
	next   int       // index in recent of the next time
	newest int64
}

// begin makes all times before now old.
func (s *sendTimes) begin(now time.Time) { s.newest = now.UnixNano() }

// isNew reports whether an event shows a change that this program has sent, and is the first event that shows the
// change. sent is the time in the annotation of the object.
func (s *sendTimes) isNew(sent int64) bool {
	if sent < s.newest-int64(unordered) || slices.Contains(s.recent[:], sent) {
		return false
	}
	s.recent[s.next] = sent
	s.next = (s.next + 1) % len(s.recent)
	s.newest = max(s.newest, sent)
	return true
}
