package probe

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// Kind is one of the three questions asked of a container.
type Kind string

const (
	Startup   Kind = "Startup"
	Readiness Kind = "Readiness"
	Liveness  Kind = "Liveness"
)

// Target is what is checked: one run of one container.
type Target struct {
	Kind      Kind
	Container *corev1.Container
	Run       int // tells the verdict on an earlier run from that on the present one
	PodIP     string
}

// Result is a verdict with the error of the latest check.
type Result struct {
	Target
	Verdict Verdict
	Err     error
}

// Run checks a target until ctx is done and sends each change of the verdict.
func (c *Checker) Run(ctx context.Context, clock clock.Clock, target Target, probe *corev1.Probe, results chan<- Result) {
	timing := TimingOf(probe)
	machine := NewMachine(timing, clock.Now())
	last := Undecided
	wait := timing.InitialDelay
	for {
		if !sleep(ctx, clock, wait) {
			return
		}
		err := c.once(ctx, timing.Timeout, probe.ProbeHandler, target.Container, target.PodIP)
		verdict := machine.Observe(err == nil, clock.Now())
		if ctx.Err() == nil && verdict != last {
			last = verdict
			select {
			case results <- Result{Target: target, Verdict: verdict, Err: err}:
			case <-ctx.Done():
				return
			}
		}
		wait = machine.Interval()
	}
}

func (c *Checker) once(ctx context.Context, timeout time.Duration, handler corev1.ProbeHandler, container *corev1.Container, podIP string) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return c.Check(ctx, handler, container, podIP)
}

// sleep waits, and reports whether ctx is still alive.
func sleep(ctx context.Context, clock clock.Clock, duration time.Duration) bool {
	if duration <= 0 {
		return ctx.Err() == nil
	}
	timer := clock.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C():
		return true
	case <-ctx.Done():
		return false
	}
}
