package storage

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/utils/clock"
)

// Space is the usage of the database.
type Space struct {
	Size  int64 // bytes of the file, which etcd compares with the quota
	InUse int64 // bytes of data in the file
	Quota int64 // bytes; 0: unknown or unlimited
	// NoSpace is set while etcd's NOSPACE alarm is raised. Until it is disarmed, etcd refuses all writes except
	// deletions.
	NoSpace bool
	// DiskFree is what the file system of an embedded member's data has left, and DiskReserve what must stay free for its
	// log, in bytes. Both are 0 if they are unknown.
	DiskFree    int64
	DiskReserve int64
}

// SoftQuota refuses writes that grow the database before it reaches etcd's quota. At etcd's quota all writes except
// plain deletions fail, including heartbeats, until an administrator frees space. The space between the two quotas is
// for the superseded revisions that deletions and updates leave until the next compaction. A nil SoftQuota refuses
// nothing.
type SoftQuota struct {
	// Measure is called for each write that grows the database.
	Measure func() Space
	// Percent of etcd's quota that may be in use; 100 disables the soft quota, but not the reserve of the file system.
	Percent int64

	refused     prometheus.Counter // nil: not counted
	refusedSize atomic.Int64       // size of the last refused data; 0: it would be admitted now
}

// fileGrowth bounds the growth of the file as a multiple of the size of new data, even if much of the file is free:
// bbolt stores the data in contiguous pages and moves its neighbours.
const fileGrowth = 3

// FullError is ErrNoSpace from the soft quota. Its message says how to free space.
type FullError struct {
	Space
	fragmented bool // the file has free space
}

func (e *FullError) Error() string {
	used, quota := mebibytes(e.InUse), mebibytes(e.Quota)
	if e.fragmented {
		return fmt.Sprintf("storage is full: the database file takes %s of its quota of %s, of which %s are in use; "+
			"defragment it with 'quorate etcd defrag'", mebibytes(e.Size), quota, used)
	}
	return fmt.Sprintf("storage is full: %s of the quota of %s are in use; delete objects, or raise the quota of etcd. "+
		"Until then objects cannot be created and cannot grow", used, quota)
}

// DiskFullError is ErrNoSpace from the file system: etcd exits when it cannot write.
type DiskFullError struct{ Space }

func (e *DiskFullError) Error() string {
	return fmt.Sprintf("storage is full: the file system of etcd has %s left, and needs %s for its log; enlarge it, or delete "+
		"other files. Until then objects cannot be created and cannot grow", mebibytes(e.DiskFree), mebibytes(e.DiskReserve))
}

// Is makes errors.Is report ErrNoSpace.
func (*DiskFullError) Is(target error) bool { return target == ErrNoSpace }

// Is makes errors.Is report ErrNoSpace.
func (*FullError) Is(target error) bool { return target == ErrNoSpace }

func mebibytes(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// Admit returns an error that is ErrNoSpace if data of size after must not replace data of size before, in bytes.
func (q *SoftQuota) Admit(before, after int) error {
	if q == nil || after <= before {
		return nil
	}
	err := q.check(int64(after))
	if err == nil {
		return nil
	}
	q.refusedSize.Store(int64(after))
	if q.refused != nil {
		q.refused.Inc()
	}
	return err
}

// check returns an error if there is no space for data of a size.
func (q *SoftQuota) check(size int64) error {
	space := q.Measure()
	switch {
	case space.DiskReserve > 0 && space.DiskFree-fileGrowth*size < space.DiskReserve:
		return &DiskFullError{Space: space}
	case space.Quota <= 0 || q.Percent >= 100:
		return nil
	case space.InUse+size > space.Quota/100*q.Percent:
		return &FullError{Space: space}
	case space.Size+fileGrowth*size >= space.Quota: // etcd itself compares the size of the file
		return &FullError{Space: space, fragmented: true}
	}
	return nil
}

// Exceeded reports whether growth is refused now, by the soft quota or by etcd's own.
func (q *SoftQuota) Exceeded() bool {
	if q == nil {
		return false
	}
	wanted := q.refusedSize.Load()
	exceeded := q.check(wanted) != nil
	if !exceeded {
		q.refusedSize.CompareAndSwap(wanted, 0)
	}
	return exceeded || q.Measure().NoSpace
}

// Space reads the status of all members and returns the usage of the fullest database among those that respond.
func (s *Store) Space(ctx context.Context) (Space, error) {
	endpoints := s.client.Endpoints()
	if len(endpoints) == 0 {
		endpoints = []string{""} // the client of an embedded member has none
	}
	spaces, failures := make([]Space, len(endpoints)), make([]error, len(endpoints))
	var members sync.WaitGroup
	for i, endpoint := range endpoints {
		members.Go(func() {
			status, err := s.client.Status(ctx, endpoint)
			if err == nil {
				spaces[i] = spaceOf(status)
			}
			failures[i] = err
		})
	}
	members.Wait()
	var fullest *Space
	noSpace := false
	for i := range spaces {
		noSpace = noSpace || spaces[i].NoSpace
		if failures[i] == nil && (fullest == nil || spaces[i].fullerThan(*fullest)) {
			fullest = &spaces[i]
		}
	}
	if fullest == nil {
		return Space{}, fmt.Errorf("measuring the database: %w", classify(failures[0]))
	}
	fullest.NoSpace = noSpace
	return *fullest, nil
}

// spaceOf returns the usage in a member's status. Members before etcd 3.6 report no quota.
func spaceOf(status *clientv3.StatusResponse) Space {
	space := Space{Size: status.DbSize, InUse: status.DbSizeInUse, Quota: max(status.DbSizeQuota, 0)}
	for _, problem := range status.Errors {
		space.NoSpace = space.NoSpace || strings.Contains(problem, etcdserverpb.AlarmType_NOSPACE.String())
	}
	return space
}

// fullerThan reports whether less of the quota is free than in another database; without quotas, whether more is in
// use.
func (s Space) fullerThan(than Space) bool {
	if s.Quota == 0 || than.Quota == 0 {
		return s.InUse > than.InUse
	}
	return s.Quota-s.InUse < than.Quota-than.InUse
}

// statusTimeout bounds one status request.
const statusTimeout = 5 * time.Second

// PollSpace calls found with the usage of the database at an interval, until ctx ends. It skips failed measurements.
func (s *Store) PollSpace(ctx context.Context, interval time.Duration, clock clock.WithTicker, found func(Space)) {
	ticker := clock.NewTicker(interval)
	defer ticker.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, statusTimeout)
		space, err := s.Space(limited)
		cancel()
		if err == nil {
			found(space)
		}
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
	}
}
