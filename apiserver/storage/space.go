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

// Space is the usage of an etcd database.
type Space struct {
	Size  int64 // size of the file in bytes, which etcd compares with the quota
	InUse int64 // size of the data in the file, in bytes
	Quota int64 // quota in bytes; 0: unknown or unlimited
	// NoSpace is set while etcd's NOSPACE alarm is raised. Until it is disarmed, etcd refuses all writes except
	// deletions.
	NoSpace bool
	// DiskFree is the free space in the file system of an embedded member's data, and DiskReserve the space that must
	// stay free for its log, in bytes. Both are 0 if they are unknown.
	DiskFree    int64
	DiskReserve int64
}

// SoftQuota refuses writes that grow the database before it reaches etcd's quota. At etcd's quota all writes except
// plain deletions fail, including heartbeats, until an administrator frees space. The space between the two quotas is
// left for the superseded revisions that deletions and updates keep in the database until the next compaction. A nil
// SoftQuota refuses nothing.
type SoftQuota struct {
	// Measure returns the current usage. It is called for each write that grows the database, and by Exceeded.
	Measure func() Space
	// Percent is the share of etcd's quota that may be in use. 100 disables the soft quota, but not the reserve of
	// the file system.
	Percent int64

	refused     prometheus.Counter // counter of refused writes; nil: they are not counted
	refusedSize atomic.Int64       // size in bytes of the last rejected data; 0: it would be admitted now
}

// fileGrowth bounds the growth of the file by one write, as a multiple of the size of the data, even if much of the
// file is free: bbolt stores a value in contiguous pages and moves its neighbours.
const fileGrowth = 3

// FullError is the ErrNoSpace of the soft quota. Its message says how to free space.
type FullError struct {
	Space
	fragmented bool // the size of the file, not of the data, is the problem
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

// DiskFullError is the ErrNoSpace of the file system. etcd would exit if it could not write.
type DiskFullError struct{ Space }

func (e *DiskFullError) Error() string {
	return fmt.Sprintf("storage is full: the file system of etcd has %s left, and needs %s for its log; enlarge it, or "+
		"delete other files. Until then objects cannot be created and cannot grow",
		mebibytes(e.DiskFree), mebibytes(e.DiskReserve))
}

// Is makes errors.Is report ErrNoSpace.
func (*DiskFullError) Is(target error) bool { return target == ErrNoSpace }

// Is makes errors.Is report ErrNoSpace.
func (*FullError) Is(target error) bool { return target == ErrNoSpace }

func mebibytes(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// Admit decides whether data of size before may be replaced with data of size after, in bytes. The error wraps
// ErrNoSpace. Admit admits all writes that do not grow the data.
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

// check returns an error if there is no space for data of a size in bytes.
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

// Exceeded reports whether writes are currently rejected for lack of space: the soft quota rejects data of the size
// that it rejected last, or etcd's own quota rejects all data.
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

// Space reads the status of all members, and returns the usage of the fullest database among the members that
// respond. NoSpace is set if any of them has the alarm.
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
		return Space{}, fmt.Errorf("measure the database: %w", classify(failures[0]))
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

// fullerThan reports whether a smaller part of the quota is free than in the database than. For databases without
// quotas, it reports whether more space is in use.
func (s Space) fullerThan(than Space) bool {
	if s.Quota == 0 || than.Quota == 0 {
		return s.InUse > than.InUse
	}
	return s.Quota-s.InUse < than.Quota-than.InUse
}

// statusTimeout bounds one request of a member's status.
const statusTimeout = 5 * time.Second

// PollSpace calls found with the usage of the database, immediately and then at an interval, until ctx ends. It skips
// failed measurements.
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
