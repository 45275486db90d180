package hollow

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
)

const keptProblems = 5

// Stats counts what all clients of a cluster observe.
type Stats struct {
	InSync    atomic.Int64 // watches that are in sync now
	Lost      atomic.Int64 // watches that ended without a reason, or could not be resumed
	Refused   atomic.Int64 // watch requests with another status than 200
	Relisted  atomic.Int64 // watches that began again with the initial state, because they could not be resumed
	Delivered atomic.Int64 // events after the initial ones
	Failed    atomic.Int64 // writes and reads that failed
	// Disturbed is set while connections are expected to end: watches that end then are not lost.
	Disturbed atomic.Bool

	// Writing is locked for reading while a node writes. Who locks it for writing can compare changes with events.
	Writing sync.RWMutex

	current atomic.Pointer[Timings]

	mu       sync.Mutex
	problems []string
}

// Timings are the durations since the last call of Stats.Restart.
type Timings struct {
	Events Histogram // from sending a change to the receipt of its event
	Writes Histogram
	Reads  Histogram
}

// NewStats returns counters that are 0.
func NewStats() *Stats {
	s := &Stats{}
	s.Restart()
	return s
}

// Timings returns the present timings.
func (s *Stats) Timings() *Timings { return s.current.Load() }

// Restart begins new timings.
func (s *Stats) Restart() { s.current.Store(&Timings{}) }

// Fail counts a failed request.
func (s *Stats) Fail(err error) {
	s.Failed.Add(1)
	s.Report(err)
}

// Report keeps the first few problems.
func (s *Stats) Report(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if text := fmt.Sprint(err); len(s.problems) < keptProblems && !slices.Contains(s.problems, text) {
		s.problems = append(s.problems, text)
	}
}

// Problems returns the first few problems.
func (s *Stats) Problems() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.problems)
}
