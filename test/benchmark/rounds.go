package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"quorate.dev/test/measure"
)

const (
	defaultRounds  = 5
	fewestOfARound = 2 // requests in a round of a work without a fixed count
)

// round is one measurement of a work. The row of the work is the median of its rounds.
type round struct {
	work      work
	index, of int
}

// rounds returns the number of rounds of a work if n are desired. Each round needs a request.
func (w work) rounds(n int) int {
	if w.count > 0 {
		return min(n, w.count)
	}
	return n
}

// part returns the part of the work that the round executes: a contiguous share of its requests. All rounds together
// send each request once. A work without a fixed count has no shares; each of its rounds has a share of measuringTime.
func (r round) part() work {
	w := r.work
	if w.count == 0 {
		return w
	}
	first, end := w.count*r.index/r.of, w.count*(r.index+1)/r.of
	w.count, w.request = end-first, from(first, w.request)
	return w
}

// least returns what a round of a work without a fixed count does at least.
func (r round) least() least {
	return least{measuringTime / time.Duration(r.of), max(fewestOfARound, fewestRequests/r.of)}
}

// course holds the rounds of one work on one server that were executed so far.
type course struct {
	tally                  // latencies and bytes of all rounds
	rounds []time.Duration // CPU time per request of each round
	next   int             // index of the next request of a work without a fixed count
}

// add adds a round, in which the server has used the given CPU time.
func (c *course) add(done *tally, used time.Duration) {
	c.latencies = append(c.latencies, done.latencies...)
	c.bytes += done.bytes
	c.next += done.indexes
	c.rounds = append(c.rounds, used/time.Duration(len(done.latencies)))
}

// summarize returns the measurement of all rounds. The CPU time is the median of the rounds, because other processes
// disturb single rounds. The quantiles are of the latencies of all rounds.
func (c *course) summarize() Measurement {
	n := len(c.latencies)
	slices.Sort(c.latencies)
	return Measurement{
		Requests: n, Bytes: c.bytes / int64(n), CPU: median(c.rounds), Rounds: slices.Clone(c.rounds),
		P50: measure.Quantile(c.latencies, 0.50), P99: measure.Quantile(c.latencies, 0.99),
	}
}

// median returns the median of values, of which there must be at least one: the mean of the two middle values if their
// number is even.
func median[T time.Duration | float64](values []T) T {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return (sorted[(n-1)/2] + sorted[n/2]) / 2
}

// courses holds the courses of a work by the server.
type courses map[*subject]*course

// of returns the course on a server. It is empty at first.
func (c courses) of(s *subject) *course {
	if c[s] == nil {
		c[s] = &course{}
	}
	return c[s]
}

// measuring returns the steps that measure works, one step for each round of each work.
func (p plan) measuring(works []work) (steps []step) {
	for _, w := range works {
		all, n := courses{}, w.rounds(p.rounds)
		for i := range n {
			steps = append(steps, func(ctx context.Context, s *subject) error {
				if w.token && s.reference != nil {
					return nil // the floor knows no tokens
				}
				return p.measureRound(ctx, s, round{w, i, n}, all.of(s))
			})
		}
	}
	return steps
}

// measureRound measures a round and replaces the row with the summary of the rounds until then, from which the floor
// reads the size of responses.
func (p plan) measureRound(ctx context.Context, s *subject, r round, c *course) error {
	if err := s.measure(ctx, r, c); err != nil {
		return fmt.Errorf("%s: %w", r.work.name, err)
	}
	p.summarize(s, r, c)
	return nil
}

// summarize stores the row of a work, and reports it after the last round.
func (p plan) summarize(s *subject, r round, c *course) {
	m := c.summarize()
	s.results.Work[r.work.name] = m
	if r.index == r.of-1 {
		p.progress("%-15s %-55s %10s CPU (%s), p50 %s, p99 %s, %d times", s.Name, r.work.name, measure.Short(m.CPU),
			m.span(), measure.Short(m.P50), measure.Short(m.P99), m.Requests)
	}
}

// span returns the smallest and the largest CPU time of a round as text.
func (m Measurement) span() string {
	return cost(slices.Min(m.Rounds)) + " to " + cost(slices.Max(m.Rounds))
}

// ratios returns the CPU time of one server as a multiple of the CPU time of another server for the same work, in each
// round. Rounds with the same index were executed immediately after each other. If a round has no cost, or the servers
// have not the same rounds, ratios returns the ratio of the medians alone. There are no ratios if a median is noise.
func ratios(one, other Measurement) []float64 {
	if one.CPU <= 0 || other.CPU <= 0 {
		return nil
	}
	ofMedians := []float64{float64(one.CPU) / float64(other.CPU)}
	if len(one.Rounds) != len(other.Rounds) || len(one.Rounds) == 0 {
		return ofMedians
	}
	all := make([]float64, len(one.Rounds))
	for i := range all {
		if one.Rounds[i] <= 0 || other.Rounds[i] <= 0 {
			return ofMedians
		}
		all[i] = float64(one.Rounds[i]) / float64(other.Rounds[i])
	}
	return all
}
