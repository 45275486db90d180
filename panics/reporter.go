package panics

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// Delays before a loop that has panicked runs again.
const (
	firstDelay = time.Second
	maxDelay   = 5 * time.Minute
	// calm is the duration of a run after which the next delay is firstDelay again.
	calm = 10 * time.Minute
)

// Reporter logs and counts the panics of background loops. A nil *Reporter does neither.
type Reporter struct {
	clock  clock.Clock
	logger logr.Logger
	total  *prometheus.CounterVec
}

// NewReporter registers the metric. It must be called at most once per registerer.
func NewReporter(registerer prometheus.Registerer, clock clock.Clock, logger logr.Logger) *Reporter {
	r := &Reporter{clock: clock, logger: logger, total: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "quorate_background_panics_total",
		Help: "[ALPHA] Number of panics in background work, by the name of the loop.",
	}, []string{"loop"})}
	registerer.MustRegister(r.total)
	return r
}

// Expect creates the series of a loop, so that its first panic is an increase.
func (r *Reporter) Expect(loop string) {
	if r != nil {
		r.total.WithLabelValues(loop)
	}
}

// Count counts a panic that has been logged already.
func (r *Reporter) Count(loop string) { r.total.WithLabelValues(loop).Inc() }

// Report logs and counts an error if it is a panic, and reports whether it is.
func (r *Reporter) Report(loop string, err error) bool {
	var panicked *Panic
	if !errors.As(err, &panicked) {
		return false
	}
	if r == nil {
		return true
	}
	r.total.WithLabelValues(loop).Inc()
	r.logger.Error(nil, "Background work panicked", "loop", loop, "panic", fmt.Sprint(panicked.Value),
		"stack", string(panicked.Stack))
	return true
}

// Keep calls run until run returns without a panic or ctx ends. Between calls it waits, longer after each panic. run
// must be able to start again from the beginning. The context of a call ends with the call, so that goroutines that
// outlive a panic end before the next call.
func (r *Reporter) Keep(ctx context.Context, loop string, run func(context.Context) error) error {
	r.Expect(loop)
	delay := firstDelay
	for {
		began := r.clock.Now()
		err := attempt(ctx, run)
		if !r.Report(loop, err) {
			return err
		}
		if r.clock.Since(began) > calm {
			delay = firstDelay
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-r.clock.After(delay):
		}
		delay = min(2*delay, maxDelay)
	}
}

// attempt calls run with a context that ends with the call.
func attempt(ctx context.Context, run func(context.Context) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	return Catch(func() error { return run(ctx) })
}
