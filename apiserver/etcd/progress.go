package etcd

import (
	"context"
	"time"
)

const (
	// progressPeriod is the interval at which a member records its progress.
	progressPeriod = 100 * time.Millisecond
	// settleTime is how long the committed index has to be unchanged until the entry is taken to be on disk.
	settleTime = 500 * time.Millisecond
)

// recordProgress records the newest entry of the log that is on disk, until ctx ends. A member that starts again with a
// log that ends earlier has lost entries.
func (m *Member) recordProgress(ctx context.Context) {
	ticker := time.NewTicker(progressPeriod)
	defer ticker.Stop()
	written := readProgress(m.record)
	var tracker settled
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		known := tracker.observe(progress{m.server.CommittedIndex(), m.server.Term()}, progressPeriod).newest(written)
		if known == written {
			continue
		}
		if err := writeProgress(m.record, known); err != nil {
			m.log.Error(err, "Failed to record the progress of the member")
			continue
		}
		written = known
	}
}

// settled determines which committed entries are on disk. etcd announces committed entries before it saves the batch
// that contains them, and does not announce the next batch before the previous one is saved. Therefore an index is on
// disk when a higher index has been announced, or when it has not changed for longer than a disk needs to save a batch.
type settled struct {
	latest    progress
	unchanged time.Duration
	onDisk    progress
}

// observe returns the newest position that is on disk, given the present position and the time since the last call.
func (s *settled) observe(now progress, elapsed time.Duration) progress {
	if now != s.latest {
		s.onDisk, s.latest, s.unchanged = s.latest, now, 0
		return s.onDisk
	}
	if s.unchanged += elapsed; s.unchanged >= settleTime {
		s.onDisk = s.latest
	}
	return s.onDisk
}
