package peers

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// Publisher publishes the address of this replica in etcd, so that other replicas can forward requests to it.
type Publisher struct {
	Leases *Leases
	// ID is the ID of this replica.
	ID   string
	IP   string
	Port int32
	// Ready reports whether this replica is ready. The address is published when Ready first returns true.
	Ready  func(context.Context) bool
	Clock  clock.Clock
	Logger logr.Logger
}

const (
	// readyInterval is kube-apiserver's interval for checking Ready.
	readyInterval = 100 * time.Millisecond
	// releaseTimeout bounds the removal of the address at shutdown.
	releaseTimeout = 2 * time.Second
)

// Run renews the address until ctx ends, and then removes it.
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

// pause waits for a time, and reports whether the time has passed before ctx ended.
func (p *Publisher) pause(ctx context.Context, duration time.Duration) bool {
	select {
	case <-p.Clock.After(duration):
		return true
	case <-ctx.Done():
		return false
	}
}
