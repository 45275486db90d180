package bootstrap

import (
	"context"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/own"
)

const (
	retryAfter = time.Second // a pass that failed
	jitter     = 0.04        // by which passes of several replicas drift apart
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

// Run passes until ctx ends. A pass that fails is logged and tried again soon.
func (l Loop) Run(ctx context.Context, clock clock.Clock, logger logr.Logger) {
	for {
		pause := wait.Jitter(l.Every, jitter)
		if err := l.Pass(own.Context(ctx)); err != nil {
			if ctx.Err() != nil {
				return
			}
			logger.Error(err, "Will try again", "loop", l.Name)
			pause = min(pause, retryAfter)
		}
		timer := clock.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-l.Changed:
		case <-timer.C():
		}
		timer.Stop()
	}
}
