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

// Space is how full the database is.
type Space struct {
	Size  int64 // bytes that the file takes; etcd compares them with the quota
	InUse int64 // bytes of them that hold data
	Quota int64 // bytes; 0: unknown or unlimited
	// NoSpace is set while etcd's alarm NOSPACE is raised: etcd refuses everything but deletions until it is disarmed.
	NoSpace bool
}

// SoftQuota refuses to let the database grow before it reaches etcd's quota. At etcd's quota all writes but plain
// deletions fail, those of leases and heartbeats included, until an administrator makes room. Updates that do not grow
// and deletions leave superseded revisions behind, which need the room above the soft quota until the next compaction.
// A nil SoftQuota refuses nothing.
type SoftQuota struct {
	// Measure is called for each write that grows the database.
	Measure func() Space
	// Percent of etcd's quota that may be in use; 100: growth is never refused.
	Percent int64

	refused prometheus.Counter // nil: not counted
	wanted  atomic.Int64       // size of the last data that was refused; 0: there has been room for that since
}

// fileGrowth is by how many times the size of new data the file may grow even while much of it holds no data: the data
// is stored in one piece, with a neighbour, which moves.
const fileGrowth = 3

// FullError says that growth was refused: ErrNoSpace, with what to do about it.
type FullError struct {
	Space
	fragmented bool // there is room within the file
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

// Is makes it ErrNoSpace.
func (*FullError) Is(target error) bool { return target == ErrNoSpace }

func mebibytes(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// Admit returns a *FullError if data of one size, in bytes, may not replace data of another.
func (q *SoftQuota) Admit(before, after int) error {
	if q == nil || after <= before {
		return nil
	}
	err := q.check(int64(after))
	if err == nil {
		return nil
	}
	q.wanted.Store(int64(after))
	if q.refused != nil {
		q.refused.Inc()
	}
	return err
}

// check returns an error if there is no room for data of a size.
func (q *SoftQuota) check(size int64) error {
	space := q.Measure()
	switch {
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
	wanted := q.wanted.Load()
	exceeded := q.check(wanted) != nil
	if !exceeded {
		q.wanted.CompareAndSwap(wanted, 0)
	}
	return exceeded || q.Measure().NoSpace
}

// Space measures the databases of all members of etcd that answer, and returns what is known of the fullest.
func (s *Store) Space(ctx context.Context) (Space, error) {
	endpoints := s.client.Endpoints()
	if len(endpoints) == 0 {
		endpoints = []string{""} // a client in the same process has no endpoint
	}
	spaces, failures := make([]Space, len(endpoints)), make([]error, len(endpoints))
	var asked sync.WaitGroup
	for i, endpoint := range endpoints {
		asked.Go(func() {
			status, err := s.client.Status(ctx, endpoint)
			if err == nil {
				spaces[i] = spaceOf(status)
			}
			failures[i] = err
		})
	}
	asked.Wait()
	var fullest *Space
	noSpace := false
	for i := range spaces {
		noSpace = noSpace || spaces[i].NoSpace
		if failures[i] == nil && (fullest == nil || spaces[i].fuller(*fullest)) {
			fullest = &spaces[i]
		}
	}
	if fullest == nil {
		return Space{}, fmt.Errorf("measuring the database: %w", classify(failures[0]))
	}
	fullest.NoSpace = noSpace
	return *fullest, nil
}

// spaceOf reads a member's status. That of a member before etcd 3.6 has no quota.
func spaceOf(status *clientv3.StatusResponse) Space {
	space := Space{Size: status.DbSize, InUse: status.DbSizeInUse, Quota: max(status.DbSizeQuota, 0)}
	for _, problem := range status.Errors {
		space.NoSpace = space.NoSpace || strings.Contains(problem, etcdserverpb.AlarmType_NOSPACE.String())
	}
	return space
}

// fuller reports whether less of the quota is left than in another; without quotas, whether more is in use.
func (s Space) fuller(than Space) bool {
	if s.Quota == 0 || than.Quota == 0 {
		return s.InUse > than.InUse
	}
	return s.Quota-s.InUse < than.Quota-than.InUse
}

// spaceTimeout bounds one measurement by polling.
const spaceTimeout = 5 * time.Second

// PollSpace measures until ctx ends, at an interval, and hands over what it finds. An error leaves the last measurement
// in force.
func (s *Store) PollSpace(ctx context.Context, interval time.Duration, clock clock.WithTicker, found func(Space)) {
	ticker := clock.NewTicker(interval)
	defer ticker.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, spaceTimeout)
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
