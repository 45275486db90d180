package main

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

const (
	measuringTime  = 2500 * time.Millisecond // duration of all rounds of a work without a fixed number of requests
	warmUpTime     = 300 * time.Millisecond
	fewestRequests = 5 // in all rounds of such a work
)

// Measurement is the cost of one work on one server.
type Measurement struct {
	Requests int           `json:"requests"`
	Bytes    int64         `json:"bytesPerRequest"`
	CPU      time.Duration `json:"cpuPerRequest"` // median of the rounds; not positive if it is smaller than the noise
	P50      time.Duration `json:"p50,omitempty"`
	P99      time.Duration `json:"p99,omitempty"`
	// Rounds holds the CPU time per request of each round. Older recorded results have none.
	Rounds []time.Duration `json:"rounds,omitempty"`
}

// measure executes a round of a work, reads the CPU time of the server before and after the round, and adds the round
// to the course. Only the first round has a warm-up and a profile.
func (s *subject) measure(ctx context.Context, r round, c *course) error {
	if err := s.setSize(ctx, r.work); err != nil {
		return err
	}
	if r.work.watchers > 0 {
		return s.measureWatch(ctx, r, c)
	}
	if r.work.count == 0 && r.index == 0 {
		done, err := s.repeat(ctx, r.work, least{warmUpTime, fewestRequests})
		if err != nil {
			return err
		}
		c.next = done.indexes
	}
	w := r.part()
	w.request = from(c.next, w.request)
	profile := s.profileRound(ctx, r)
	var done *tally
	used, err := s.timed(func() (err error) {
		done, err = s.repeat(ctx, w, r.least())
		return err
	})
	if err := errors.Join(err, profile()); err != nil {
		return err
	}
	c.add(done, used)
	return nil
}

// tally holds the results that the client has observed while it sent requests.
type tally struct {
	latencies []time.Duration
	bytes     int64
	indexes   int // number of indexes that the following requests must skip, if the work has no fixed count
}

// least is the time and the number of requests after which a work without a fixed count may end.
type least struct {
	time     time.Duration
	requests int
}

// repeat sends the requests of a work, each index once, with the concurrency and at most the rate of the work, until
// the work's count or otherwise both limits of enough are reached.
func (s *subject) repeat(ctx context.Context, w work, enough least) (*tally, error) {
	var (
		next    atomic.Int64
		group   sync.WaitGroup
		tallies = make([]tally, w.parallel)
		errs    = make([]error, w.parallel)
		begin   = time.Now()
		end     = begin.Add(enough.time)
	)
	client := s.client
	if w.token {
		client = s.tokenClient
	}
	for worker := range w.parallel {
		group.Go(func() {
			for errs[worker] == nil {
				i := int(next.Add(1) - 1)
				if finished(w.count, enough.requests, i, time.Now().After(end)) {
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
	if w.count == 0 {
		total.indexes = int(next.Load())
	}
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
// up and the fewest requests were sent.
func finished(count, fewest, i int, timeIsUp bool) bool {
	if count > 0 {
		return i >= count
	}
	return timeIsUp && i >= fewest
}

func (t *tally) add(ctx context.Context, c *client, r request) error {
	latency, size, err := c.do(ctx, r)
	t.latencies = append(t.latencies, latency)
	t.bytes += size
	return err
}
