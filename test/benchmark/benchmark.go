package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
)

const (
	warmUpNamespace = "warm-up"
	warmUpRequests  = 300
)

// Results are what one server showed.
type Results struct {
	Ready         time.Duration          `json:"ready"`
	IdleMemory    int64                  `json:"idleMemory"`    // bytes resident, nothing stored by a user
	CreatedMemory int64                  `json:"createdMemory"` // with all objects, before the first read
	LoadedMemory  int64                  `json:"loadedMemory"`  // right after the reads
	PeakMemory    int64                  `json:"peakMemory"`    // since the start, until the crowd comes
	Work          map[string]Measurement `json:"work"`          // by name
}

// plan is what to do besides the standard.
type plan struct {
	works    string // only reads, writes, watches and deletions whose names contain it
	progress func(format string, arguments ...any)
}

func (p plan) wants(w work) bool { return strings.Contains(w.name, p.works) }

// run takes a fresh server through all the work.
func (s *subject) run(ctx context.Context, p plan) (*Results, error) {
	results := &Results{Ready: s.ready, Work: map[string]Measurement{}}
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	err := errors.Join(
		s.remember(&results.IdleMemory, "VmRSS"),
		s.warmUp(ctx),
		s.measureAll(ctx, p, results, creations()),
		s.remember(&results.CreatedMemory, "VmRSS"),
		s.measureAll(ctx, p, results, filter(reads(), p)),
		s.remember(&results.LoadedMemory, "VmRSS"),
		s.startProfile(ctx, profileOfMemory, "memory after the reads")(),
		s.measureAll(ctx, p, results, filter(writes(), p)),
		s.measureAll(ctx, p, results, filter(watches(), p)),
		s.measureAll(ctx, p, results, filter(deletions(), p)),
		s.remember(&results.PeakMemory, "VmHWM"),
		s.measureCrowd(ctx, p, results),
	)
	return results, err
}

func filter(works []work, p plan) (wanted []work) {
	for _, w := range works {
		if p.wants(w) {
			wanted = append(wanted, w)
		}
	}
	return wanted
}

func (s *subject) remember(figure *int64, name string) (err error) {
	*figure, err = memory(s.pids, name)
	return err
}

// warmUp creates and deletes objects elsewhere, so that what is built on first use is built.
func (s *subject) warmUp(ctx context.Context) error {
	for _, name := range []string{namespace, manyNamespace, warmUpNamespace} {
		body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name)
		if _, _, err := s.client.do(ctx, request{http.MethodPost, "/api/v1/namespaces", asJSON, asJSON, body}); err != nil {
			return err
		}
	}
	for _, w := range creations() {
		elsewhere := func(i int) request { return w.request(i).inNamespace(warmUpNamespace) }
		if _, err := s.repeat(ctx, work{parallel: w.parallel, count: warmUpRequests, request: elsewhere}, 0); err != nil {
			return err
		}
	}
	for _, path := range []string{configMaps, pods} {
		everything := request{method: http.MethodDelete, path: path + "?gracePeriodSeconds=0", accept: asJSON}
		if _, _, err := s.client.do(ctx, everything.inNamespace(warmUpNamespace)); err != nil {
			return err
		}
	}
	return nil
}

// measureCrowd makes many objects, unless nothing is asked of them, and looks for some.
func (s *subject) measureCrowd(ctx context.Context, p plan, results *Results) error {
	wanted := filter(selections(), p)
	if len(wanted) == 0 {
		return nil
	}
	return errors.Join(s.measureAll(ctx, p, results, crowds()), s.measureAll(ctx, p, results, wanted))
}

func (s *subject) measureAll(ctx context.Context, p plan, results *Results, works []work) error {
	for _, w := range works {
		measurement, err := s.measure(ctx, w)
		if err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
		results.Work[w.name] = measurement
		p.progress("  %-42s %10s CPU, p50 %s, p99 %s, %d times", w.name, cost(measurement.CPU),
			short(measurement.P50), short(measurement.P99), measurement.Requests)
	}
	return nil
}
