package peers

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// Publisher keeps the address of this replica in etcd, so that others can pass requests on to it.
type Publisher struct {
	Leases *Leases
	ID     string // of this replica
	IP     string
	Port   int32
	// Ready reports whether this replica is ready. The address is published when it is for the first time.
	Ready  func(context.Context) bool
	Clock  clock.Clock
	Logger logr.Logger
}

const (
	readyInterval  = 100 * time.Millisecond // kube-apiserver's
	releaseTimeout = 2 * time.Second        // of the address at shutdown
)

// Run renews the address until ctx ends, then deletes it.
func (p *Publisher) Run(ctx context.Context, done func()) error {
	done()
	for !p.Ready(ctx) {
		if !p.pause(ctx, readyInterval) {
			return nil
		}
	}
	for {
		if err := p.Leases.renew(ctx, p.ID, p.IP, p.Port); err != nil && ctx.Err() == nil {
			p.Logger.Error(err, "Failed to publish the address of this server for its peers")
		}
		if !p.pause(ctx, renewal) {
			break
		}
	}
	releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := p.Leases.remove(releasing, p.ID); err != nil {
		p.Logger.Error(err, "Failed to remove the address of this server for its peers; it expires")
	}
	return nil
}

// pause reports whether the time has passed before ctx ended.
func (p *Publisher) pause(ctx context.Context, duration time.Duration) bool {
	select {
	case <-p.Clock.After(duration):
		return true
	case <-ctx.Done():
		return false
	}
}
