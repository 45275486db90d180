package bootstrap

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/system"
)

const (
	retryAfter   = time.Second      // first delay after a failed pass
	retryTimeout = 30 * time.Second // total time limit of Retry
	jitter       = 0.04             // maximum random increase of Every, as a fraction; it spreads the passes of replicas
)

// Signal wakes a loop. Signals sent before the loop receives one are merged.
type Signal chan struct{}

// NewSignal returns a signal.
func NewSignal() Signal { return make(Signal, 1) }

// Send wakes the loop. It does not block.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Loop runs Pass immediately, after each Signal, and periodically.
type Loop struct {
	Name    string
	Pass    func(context.Context) error
	Every   time.Duration
	Changed Signal // optional
}

// Run runs passes until ctx ends. Failed passes are logged and retried with backoff.
func (l Loop) Run(ctx context.Context, clock clock.Clock, logger logr.Logger) {
	for retry := retryAfter; ; {
		pause := wait.Jitter(l.Every, jitter)
		if err := l.Pass(system.WithServerUser(ctx)); err != nil {
			if ctx.Err() != nil {
				return
			}
			logger.Error(err, "Failed to run a bootstrap loop; retrying", "loop", l.Name)
			pause, retry = min(pause, retry), min(2*retry, l.Every)
		} else {
			retry = retryAfter
		}
		if !sleep(ctx, clock, pause, l.Changed) {
			return
		}
	}
}

// sleep waits for the duration or a signal and reports whether ctx is still active.
func sleep(ctx context.Context, clock clock.Clock, duration time.Duration, changed Signal) bool {
	timer := clock.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-changed:
	case <-timer.C():
	}
	return true
}

// Retry retries a start-up step until it succeeds or retryTimeout has passed. Steps must be idempotent.
func (b *Bootstrap) Retry(ctx context.Context, step func(context.Context) error) error {
	deadline := b.clock.Now().Add(retryTimeout)
	for {
		err := step(ctx)
		if err == nil || !b.clock.Now().Before(deadline) {
			return err
		}
		b.logger.Error(err, "Failed to run a start-up step; retrying")
		if !sleep(ctx, b.clock, retryAfter, nil) {
			return err
		}
	}
}
