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
	leaseMaxReuse   = 60 // seconds
	leaseReuseShare = 20 // a lease is reused for at most this fraction (1/20, 5 %) of the time to live
)

// granter grants leases; *clientv3.Client is one.
type granter interface {
	Grant(ctx context.Context, ttl int64) (*clientv3.LeaseGrantResponse, error)
}

// leases shares one lease among the objects written shortly after one another with the same time to live, since
// leases are expensive for etcd. Only the last lease is remembered: events are what uses leases, and all of
// them live equally long.
type leases struct {
	granter granter
	clock   clock.PassiveClock

	mu   sync.Mutex
	last lease
}

// lease is a granted lease and how many objects have been attached to it.
type lease struct {
	id      clientv3.LeaseID
	expires time.Time
	objects int
}

// reuse returns for how many seconds after it was granted a lease for a time to live, in seconds, is shared.
func reuse(ttl int64) int64 { return min(ttl/leaseReuseShare, leaseMaxReuse) }

// fits tells whether an object that shall live for ttl seconds from now on may be attached: it must not die too
// early, nor live longer than the extra time allows.
func (l lease) fits(now time.Time, ttl int64) bool {
	earliest := now.Add(time.Duration(ttl) * time.Second)
	latest := earliest.Add(time.Duration(reuse(ttl)) * time.Second)
	return l.objects < leaseMaxObjects && !l.expires.Before(earliest) && !l.expires.After(latest)
}

func (l *leases) get(ctx context.Context, ttl int64) (clientv3.LeaseID, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	if !l.last.fits(now, ttl) {
		total := ttl + reuse(ttl)
		granted, err := l.granter.Grant(ctx, total)
		if err != nil {
			return 0, fmt.Errorf("granting a lease of %d s: %w", total, err)
		}
		l.last = lease{id: granted.ID, expires: now.Add(time.Duration(total) * time.Second)}
	}
	l.last.objects++
	return l.last.id, nil
}
