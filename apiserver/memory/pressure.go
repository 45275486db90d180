package memory

import (
	"context"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// Level is how full the memory is, and thereby which requests are rejected.
type Level int32

const (
	// Normal means that all requests are served.
	Normal Level = iota
	// High means that expensive requests are rejected.
	High
	// Critical means that all requests are rejected except a few kinds that the filter exempts.
	Critical
)

func (l Level) String() string {
	return [...]string{"normal", "high", "critical"}[l]
}

// Sample is the state of the heap at one time.
type Sample struct {
	// Live is the number of bytes that the last garbage collection found in use.
	Live int64
	// InUse is the number of bytes that count against the limit, including garbage.
	InUse int64
	// Cycle is the number of garbage collections.
	Cycle int64
}

// State is a level and the observations that Next derives the next level from.
type State struct {
	Level Level
	// Live and Cycle are the values of the last garbage collection that was observed.
	Live, Cycle int64
	// Since is the time at which the reason for the level was last observed.
	Since time.Time
}

const (
	// highPercent and criticalPercent are the percentages of the limit that live memory must exceed for a growing heap
	// to raise the level.
	highPercent, criticalPercent = 80, 90
	// excessPercent is the percentage of the limit from which memory in use means that the garbage collector cannot
	// keep the process within the limit.
	excessPercent = 105
	// growthPart is the reciprocal of the share of the limit by which live memory must grow between two garbage
	// collections to count as growing.
	growthPart = 200
	// hold is the time for which a level is kept after its reason was last observed.
	hold = time.Second
)

// Next returns the state after a sample. The level rises immediately. It falls when no reason for it has been observed
// for the time hold: a heap that is nearly full but does not grow can serve requests.
func Next(state State, s Sample, limit int64, now time.Time) State {
	level := Normal
	if s.Cycle != state.Cycle {
		growing := s.Live-state.Live > limit/growthPart
		switch {
		case growing && s.Live/criticalPercent > limit/100:
			level = Critical
		case growing && s.Live/highPercent > limit/100:
			level = High
		}
		state.Live, state.Cycle = s.Live, s.Cycle
	}
	if s.InUse/excessPercent > limit/100 {
		level = Critical
	}
	if level >= state.Level || now.Sub(state.Since) >= hold {
		state.Level, state.Since = level, now
	}
	return state
}

// Pressure observes the heap of the process.
type Pressure struct {
	limit   int64
	level   atomic.Int32
	logger  logr.Logger
	samples []metrics.Sample
}

// NewPressure returns the Pressure of a process with a memory limit in bytes.
func NewPressure(limit int64, logger logr.Logger) *Pressure {
	return &Pressure{limit: limit, logger: logger, samples: []metrics.Sample{
		{Name: "/gc/heap/live:bytes"}, {Name: "/memory/classes/total:bytes"}, {Name: "/memory/classes/heap/released:bytes"},
		{Name: "/gc/cycles/total:gc-cycles"},
	}}
}

// Level returns the current level.
func (p *Pressure) Level() Level { return Level(p.level.Load()) }

// sampleInterval is the interval at which the heap is observed.
const sampleInterval = 100 * time.Millisecond

// logInterval is the minimum time between two log lines about rejected requests.
const logInterval = time.Minute

// Run observes the heap until ctx ends.
func (p *Pressure) Run(ctx context.Context, ticks clock.WithTicker) {
	if p.limit == Unlimited {
		return
	}
	ticker := ticks.NewTicker(sampleInterval)
	defer ticker.Stop()
	var state State
	var logged time.Time
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C():
			state = Next(state, p.sample(), p.limit, now)
			if state.Level > p.Level() && now.Sub(logged) >= logInterval {
				logged = now
				p.logger.Info("Rejecting requests because memory is nearly full; raise the memory limit if the load is legitimate",
					"level", state.Level.String(), "live", state.Live, "limit", p.limit)
			}
			p.level.Store(int32(state.Level))
		}
	}
}

func (p *Pressure) sample() Sample {
	metrics.Read(p.samples)
	value := func(i int) int64 { return int64(p.samples[i].Value.Uint64()) }
	return Sample{Live: value(0), InUse: value(1) - value(2), Cycle: value(3)}
}
