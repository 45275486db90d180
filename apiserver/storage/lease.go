package storage

import (
	"context"
	"fmt"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/utils/clock"
)

const (
	leaseMaxObjects = 1000
	leaseMaxReuse   = 60 // in seconds, unless ShareLeases sets another limit
	leaseReuseShare = 20 // a lease is reused for at most 1/20 of the TTL, 5 %
)

// leaseGranter is the part of *clientv3.Client that grants leases.
type leaseGranter interface {
	Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error)
}

// leases shares one lease among objects with the same TTL that are written in short succession, like kube-apiserver's
// leaseManager: leases are expensive for etcd. It remembers only the last lease, because Events are the only objects
// with a TTL, and all have the same.
type leases struct {
	granter  leaseGranter
	clock    clock.PassiveClock
	maxReuse int64         // in seconds
	metrics  *storeMetrics // nil: not measured

	mu   sync.Mutex
	last lease
}

// lease is a granted lease and the number of objects attached to it.
type lease struct {
	id      clientv3.LeaseID
	expires time.Time
	objects int
}

// ShareLeases sets the maximum time in seconds over which objects share a lease; 0 gives each object its own lease.
// It must be called before the store is used. It is the flag --lease-reuse-duration-seconds.
func (s *Store) ShareLeases(seconds int64) { s.leases.maxReuse = seconds }

// reuseSeconds returns the time in seconds for which a lease for a TTL in seconds is shared after it was granted.
func (l *leases) reuseSeconds(ttl int64) int64 { return min(ttl/leaseReuseShare, l.maxReuse) }

// fits reports whether an object with a TTL can use the lease: the object must not expire early, nor live longer than
// the reuse time permits. ttl and reuse are in seconds.
func (l lease) fits(now time.Time, ttl, reuse int64) bool {
	earliest := now.Add(time.Duration(ttl) * time.Second)
	latest := earliest.Add(time.Duration(reuse) * time.Second)
	return l.objects < leaseMaxObjects && !l.expires.Before(earliest) && !l.expires.After(latest)
}

// get returns a lease for an object with a TTL in seconds. If it must grant one, it calls etcd under the lock, so
// that concurrent callers share that lease.
func (l *leases) get(ctx context.Context, ttl int64) (clientv3.LeaseID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	if reuse := l.reuseSeconds(ttl); reuse == 0 || !l.last.fits(now, ttl, reuse) {
		total := ttl + reuse
		granted, err := l.granter.Grant(ctx, total)
		if err != nil {
			return 0, fmt.Errorf("grant a lease of %d s: %w", total, err)
		}
		if l.last.objects > 0 {
			l.metrics.leaseReplaced(l.last.objects)
		}
		l.last = lease{id: granted.ID, expires: now.Add(time.Duration(total) * time.Second)}
	}
	l.last.objects++
	return l.last.id, nil
}
