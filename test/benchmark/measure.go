package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"quorate.dev/test/measure"
)

const (
	measuringTime  = 2500 * time.Millisecond // duration of a work without a fixed number of requests
	warmUpTime     = 300 * time.Millisecond
	fewestRequests = 5
)

// Measurement is the cost of one work on one server.
type Measurement struct {
	Requests int           `json:"requests"`
	Bytes    int64         `json:"bytesPerRequest"`
	CPU      time.Duration `json:"cpuPerRequest"` // not positive if the cost is smaller than the noise
	P50      time.Duration `json:"p50,omitempty"`
	P99      time.Duration `json:"p99,omitempty"`
}

// measure executes a work, and reads the CPU time of the server before and after it.
func (s *subject) measure(ctx context.Context, w work) (Measurement, error) {
	if err := s.setSize(ctx, w); err != nil {
		return Measurement{}, err
	}
	if w.watchers > 0 {
		return s.measureWatch(ctx, w)
	}
	if w.count == 0 {
		if _, err := s.repeat(ctx, w, warmUpTime); err != nil {
			return Measurement{}, err
		}
	}
	profile := s.startProfile(ctx, profileOfWork, w.name)
	var done *tally
	used, err := s.timed(func() (err error) {
		done, err = s.repeat(ctx, w, measuringTime)
		return err
	})
	if err := errors.Join(err, profile()); err != nil {
		return Measurement{}, err
	}
	return done.summarize(used), nil
}

// tally holds the results that the client has observed during one work.
type tally struct {
	latencies []time.Duration
	bytes     int64
}

func (t *tally) summarize(used time.Duration) Measurement {
	n := len(t.latencies)
	slices.Sort(t.latencies)
	return Measurement{
		Requests: n, Bytes: t.bytes / int64(n), CPU: used / time.Duration(n),
		P50: measure.Quantile(t.latencies, 0.50), P99: measure.Quantile(t.latencies, 0.99),
	}
}

// repeat sends the requests of a work, each index once, with the concurrency and at most the rate of the work, until
// least has passed or the work's count is reached.
func (s *subject) repeat(ctx context.Context, w work, least time.Duration) (*tally, error) {
	var (
		next    atomic.Int64
		group   sync.WaitGroup
		tallies = make([]tally, w.parallel)
		errs    = make([]error, w.parallel)
		begin   = time.Now()
		end     = begin.Add(least)
	)
	client := s.client
	if w.token {
		client = s.tokenClient
	}
	for worker := range w.parallel {
		group.Go(func() {
			for errs[worker] == nil {
				i := int(next.Add(1) - 1)
				if finished(w.count, i, time.Now().After(end)) {
					return
				}
				if w.rate > 0 {
					time.Sleep(time.Until(begin.Add(time.Duration(i) * time.Second / time.Duration(w.rate))))
				}
				errs[worker] = tallies[worker].add(ctx, client, w.request(i))
			}
		})
	}
	group.Wait()
	total := &tally{}
	for worker := range w.parallel {
		if errs[worker] != nil {
			return nil, errs[worker]
		}
		total.latencies = append(total.latencies, tallies[worker].latencies...)
		total.bytes += tallies[worker].bytes
	}
	return total, nil
}

// finished reports whether a work ends after i requests: when a fixed count is reached, or otherwise when its time is
// up and at least fewestRequests were sent.
func finished(count, i int, timeIsUp bool) bool {
	if count > 0 {
		return i >= count
	}
	return timeIsUp && i >= fewestRequests
}

func (t *tally) add(ctx context.Context, c *client, r request) error {
	latency, size, err := c.do(ctx, r)
	t.latencies = append(t.latencies, latency)
	t.bytes += size
	return err
}
