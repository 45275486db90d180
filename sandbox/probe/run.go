package probe

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
)

// Kind is the kind of a probe.
type Kind string

const (
	Startup   Kind = "Startup"
	Readiness Kind = "Readiness"
	Liveness  Kind = "Liveness"
)

// Target is the process that a probe checks: one run of a container.
type Target struct {
	Kind      Kind
	Container *corev1.Container
	Run       int // number of the run; distinguishes the results of earlier runs
	PodIP     string
}

// Update is a changed result of a probe, with the error of the last check.
type Update struct {
	Target
	Result Result
	Err    error
}

// Run probes a target until ctx is done, and sends each change of the probe's result.
func (c *Checker) Run(
	ctx context.Context, clock clock.Clock, target Target, probe *corev1.Probe, results chan<- Update,
) {
	timing := TimingOf(probe)
	machine := NewMachine(timing, clock.Now())
	last := Unknown
	wait := timing.InitialDelay
	for {
		if !sleep(ctx, clock, wait) {
			return
		}
		err := c.once(ctx, timing.Timeout, probe.ProbeHandler, target.Container, target.PodIP)
		result := machine.Observe(err == nil, clock.Now())
		if ctx.Err() == nil && result != last {
			last = result
			select {
			case results <- Update{Target: target, Result: result, Err: err}:
			case <-ctx.Done():
				return
			}
		}
		wait = machine.Interval()
	}
}

func (c *Checker) once(
	ctx context.Context, timeout time.Duration, handler corev1.ProbeHandler, container *corev1.Container, podIP string,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return c.Check(ctx, handler, container, podIP)
}

// sleep waits for a duration, and returns false if ctx is done first.
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
