// Package probe executes the startup, readiness and liveness probes of containers, like the kubelet's prober.
package probe

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// InitialPeriod is the longest interval of checks until the first success: a container becomes ready faster than with
// its periodSeconds.
const InitialPeriod = 100 * time.Millisecond

// Timing contains the parameters of a probe with the API's defaults.
type Timing struct {
	InitialDelay     time.Duration
	Period           time.Duration
	Timeout          time.Duration
	SuccessThreshold int32
	FailureThreshold int32
}

// TimingOf returns the timing of a probe.
func TimingOf(probe *corev1.Probe) Timing {
	return Timing{
		InitialDelay:     time.Duration(probe.InitialDelaySeconds) * time.Second,
		Period:           time.Duration(cmp.Or(probe.PeriodSeconds, 10)) * time.Second,
		Timeout:          time.Duration(cmp.Or(probe.TimeoutSeconds, 1)) * time.Second,
		SuccessThreshold: cmp.Or(probe.SuccessThreshold, 1),
		FailureThreshold: cmp.Or(probe.FailureThreshold, 3),
	}
}

// Result is the result of a probe after all checks so far.
type Result int

const (
	Unknown Result = iota
	Success
	Failure
)

// Machine determines the result of a probe from its checks. Before the first success, only one failure per period
// counts, so that checks at InitialPeriod do not reach the failure threshold early.
type Machine struct {
	timing    Timing
	result    Result
	successes int32
	failures  int32
	counted   time.Time // time of the last counted failure
	succeeded bool      // at least one check has succeeded
}

// NewMachine returns the Machine for a process that started at a time.
func NewMachine(timing Timing, started time.Time) *Machine {
	return &Machine{timing: timing, counted: started.Add(timing.InitialDelay)}
}

// Observe counts a check, and returns the result of the probe.
func (m *Machine) Observe(ok bool, now time.Time) Result {
	if ok {
		m.succeeded = true
		m.failures = 0
		m.successes++
		if m.successes >= m.timing.SuccessThreshold {
			m.result = Success
		}
		return m.result
	}
	m.successes = 0
	if !m.succeeded && now.Sub(m.counted) < m.timing.Period {
		return m.result
	}
	m.counted = now
	m.failures++
	if m.failures >= m.timing.FailureThreshold {
		m.result = Failure
	}
	return m.result
}

// Interval returns the time until the next check.
func (m *Machine) Interval() time.Duration {
	if !m.succeeded {
		return min(InitialPeriod, m.timing.Period)
	}
	return m.timing.Period
}
