package serviceip

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"quorate.dev/panics"
)

const (
	// repairInterval is the interval at which all Services are checked.
	repairInterval = 3 * time.Minute
	// repairRetry is the delay after a failed first check. It is short, because the replica becomes ready only after
	// the first check.
	repairRetry = time.Second
)

// RepairLoops runs the repairs of addresses and of node ports.
type RepairLoops struct {
	Addresses *AddressRepair
	Ports     *PortRepair
	Clock     clock.WithTicker
	Logger    logr.Logger
}

// Run checks the addresses and ports of all Services until ctx ends. It calls done when both checks have succeeded
// once. Addresses must know all objects before Run is called.
func (l *RepairLoops) Run(ctx context.Context, done func()) error {
	var pending atomic.Int32
	pending.Store(2)
	repaired := func() {
		if pending.Add(-1) == 0 {
			done()
		}
	}
	loops, ctx := errgroup.WithContext(ctx)
	loops.Go(func() error {
		if err := l.succeed(ctx, l.Addresses.Once); err != nil {
			return err
		}
		repaired()
		return panics.Catch(func() error {
			l.Addresses.Run(ctx, repairInterval)
			return nil
		})
	})
	loops.Go(func() error {
		if err := l.succeed(ctx, l.Ports.Once); err != nil {
			return err
		}
		repaired()
		return panics.Catch(func() error {
			l.repeatPorts(ctx)
			return nil
		})
	})
	return loops.Wait()
}

// succeed runs a check until it succeeds once or ctx ends.
func (l *RepairLoops) succeed(ctx context.Context, check func(context.Context) error) error {
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			l.Logger.Error(err, "Failed to check the addresses and ports of Services; retrying", "interval", repairRetry)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-l.Clock.After(repairRetry):
		}
	}
}

func (l *RepairLoops) repeatPorts(ctx context.Context) {
	ticker := l.Clock.NewTicker(repairInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			if err := l.Ports.Once(ctx); err != nil && ctx.Err() == nil {
				l.Logger.Error(err, "Failed to check the ports of Services; retrying", "interval", repairInterval)
			}
		}
	}
}
