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
	retryAfter = time.Second      // a pass that failed
	patience   = 30 * time.Second // with a step of the start that fails
	jitter     = 0.04             // by which passes of several replicas drift apart
)

// Signal tells a loop that there may be something to do. Signals that come before the loop looks are one.
type Signal chan struct{}

// NewSignal returns a signal.
func NewSignal() Signal { return make(Signal, 1) }

// Send never waits.
func (s Signal) Send() {
	select {
	case s <- struct{}{}:
	default:
	}
}

// Loop keeps something in step: it passes at once, when signalled, and from time to time.
type Loop struct {
	Name    string
	Pass    func(context.Context) error
	Every   time.Duration
	Changed Signal // nil: nothing but time
}

// Run passes until ctx ends. A pass that fails is logged and tried again soon, and then ever later.
func (l Loop) Run(ctx context.Context, clock clock.Clock, logger logr.Logger) {
	for retry := retryAfter; ; {
		pause := wait.Jitter(l.Every, jitter)
		if err := l.Pass(system.WithServerUser(ctx)); err != nil {
			if ctx.Err() != nil {
				return
			}
			logger.Error(err, "Will try again", "loop", l.Name)
			pause, retry = min(pause, retry), min(2*retry, l.Every)
		} else {
			retry = retryAfter
		}
		if !sleep(ctx, clock, pause, l.Changed) {
			return
		}
	}
}

// sleep waits, but not longer than until a signal, and tells whether to go on.
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

// Insist runs a step of the start, again and again while it fails, for a time in which storage may come to itself. All
// steps find what they have made already.
func (b *Bootstrap) Insist(ctx context.Context, step func(context.Context) error) error {
	deadline := b.clock.Now().Add(patience)
	for {
		err := step(ctx)
		if err == nil || !b.clock.Now().Before(deadline) {
			return err
		}
		b.logger.Error(err, "Will try again")
		if !sleep(ctx, b.clock, retryAfter, nil) {
			return err
		}
	}
}
