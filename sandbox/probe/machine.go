// Package probe decides from repeated checks whether a container has started, is ready and is alive.
package probe

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// EagerPeriod is how often a container is checked until its first success. Waiting for the declared period
// would make every start as slow as that.
const EagerPeriod = 100 * time.Millisecond

// Timing is a probe's declared numbers with the API's defaults.
type Timing struct {
	InitialDelay     time.Duration
	Period           time.Duration
	Timeout          time.Duration
	SuccessThreshold int32
	FailureThreshold int32
}

// TimingOf reads a probe.
func TimingOf(probe *corev1.Probe) Timing {
	return Timing{
		InitialDelay:     time.Duration(probe.InitialDelaySeconds) * time.Second,
		Period:           time.Duration(cmp.Or(probe.PeriodSeconds, 10)) * time.Second,
		Timeout:          time.Duration(cmp.Or(probe.TimeoutSeconds, 1)) * time.Second,
		SuccessThreshold: cmp.Or(probe.SuccessThreshold, 1),
		FailureThreshold: cmp.Or(probe.FailureThreshold, 3),
	}
}

// Verdict is what the checks so far amount to.
type Verdict int

const (
	Undecided Verdict = iota
	Success
	Failure
)

// Machine counts successes and failures of one probe. Only one failure in each period counts, so that eager
// checks do not use up the failure threshold early.
type Machine struct {
	timing    Timing
	verdict   Verdict
	successes int32
	failures  int32
	counted   time.Time // when a failure last counted
	succeeded bool      // once, ever
}

// NewMachine starts to count at a time, when the container started.
func NewMachine(timing Timing, started time.Time) *Machine {
	return &Machine{timing: timing, counted: started.Add(timing.InitialDelay)}
}

// Observe takes in one check and returns the verdict.
func (m *Machine) Observe(ok bool, now time.Time) Verdict {
	if ok {
		m.succeeded = true
		m.failures = 0
		m.successes++
		if m.successes >= m.timing.SuccessThreshold {
			m.verdict = Success
		}
		return m.verdict
	}
	m.successes = 0
	if !m.succeeded && now.Sub(m.counted) < m.timing.Period {
		return m.verdict
	}
	m.counted = now
	m.failures++
	if m.failures >= m.timing.FailureThreshold {
		m.verdict = Failure
	}
	return m.verdict
}

// Interval is how long to wait before the next check. Failures do not hurry it: an eager check that fails
// leaves things as they are.
func (m *Machine) Interval() time.Duration {
	if !m.succeeded {
		return min(EagerPeriod, m.timing.Period)
	}
	return m.timing.Period
}
