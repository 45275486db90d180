package memory

import (
	"context"
	"runtime/metrics"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// Level says which requests the process can still serve.
type Level int32

const (
	// Normal: all requests are served.
	Normal Level = iota
	// High: costly requests are rejected.
	High
	// Critical: all requests are rejected that the cluster does not depend on.
	Critical
)

func (l Level) String() string {
	return [...]string{"normal", "high", "critical"}[l]
}

// Sample is the state of the heap.
type Sample struct {
	Live  int64 // bytes that the last garbage collection found in use
	InUse int64 // bytes that count against the limit, including garbage
	Cycle int64 // number of garbage collections
}

// State is a level and what it depends on.
type State struct {
	Level Level
	// Live and Cycle are of the last garbage collection that was seen.
	Live, Cycle int64
	// Since is when the reason for the level was last observed.
	Since time.Time
}

const (
	// highPercent and criticalPercent of the limit are the amounts of live memory above which a growing heap raises the level.
	highPercent, criticalPercent = 80, 90
	// excessPercent is the use of memory, in percent of the limit, from which on the garbage collector is considered unable to
	// keep the process within the limit.
	excessPercent = 105
	// growthPart of the limit is the growth from one garbage collection to the next that counts as growing.
	growthPart = 200
	// hold is how long a level stays after its reason has gone.
	hold = time.Second
)

// Next returns the state after a sample. The level rises immediately. It falls when no reason for it has been observed for a
// while: a heap that is nearly full but does not grow can serve requests.
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

// Pressure follows the heap of the process.
type Pressure struct {
	limit   int64
	level   atomic.Int32
	logger  logr.Logger
	samples []metrics.Sample
}

// NewPressure returns the pressure of a process with a limit.
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

// logInterval is the minimum time between messages about rejected requests.
const logInterval = time.Minute

// Run follows the heap until ctx ends.
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
