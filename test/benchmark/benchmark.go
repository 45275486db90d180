package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"quorate.dev/test/measure"
)

const (
	warmUpNamespace = "warm-up"
	warmUpRequests  = 300
)

// Results are the measurements of one server.
type Results struct {
	Ready         time.Duration `json:"ready"`
	IdleMemory    int64         `json:"idleMemory"`    // resident bytes before a user has stored anything
	CreatedMemory int64         `json:"createdMemory"` // resident bytes with all objects, before the first read
	LoadedMemory  int64         `json:"loadedMemory"`  // resident bytes immediately after the reads
	// PeakMemory is the largest number of resident bytes from the start until the crowds are created.
	PeakMemory  int64                  `json:"peakMemory"`
	Work        map[string]Measurement `json:"work"` // by name of the work
	Definitions *DefinitionResults     `json:"definitions"`
	Overload    *OverloadResults       `json:"overload,omitempty"`
}

// plan selects the works that are measured.
type plan struct {
	works    string // a part of the names of the reads, writes, watches and deletions to measure; "": all
	rounds   int    // number of rounds of each work
	progress func(format string, arguments ...any)
}

func (p plan) wants(w work) bool { return strings.Contains(w.name, p.works) }

// step is a part of the benchmark of one server.
type step func(context.Context, *subject) error

// steps returns all steps of the benchmark, in order.
func (p plan) steps() []step {
	steps := []step{
		func(ctx context.Context, s *subject) error { return s.settle(ctx) },
		func(_ context.Context, s *subject) error { return s.remember(&s.results.IdleMemory, "VmRSS") },
		func(ctx context.Context, s *subject) error { return s.warmUp(ctx) },
	}
	steps = append(steps, p.measuring(creations())...)
	steps = append(steps, func(_ context.Context, s *subject) error {
		return s.remember(&s.results.CreatedMemory, "VmRSS")
	})
	steps = append(steps, p.measuring(filter(reads(), p))...)
	steps = append(steps, func(ctx context.Context, s *subject) error {
		err := s.remember(&s.results.LoadedMemory, "VmRSS")
		return errors.Join(err, s.startProfile(ctx, profileOfMemory, "memory after the reads")())
	})
	steps = append(steps, p.measuring(filter(writes(), p))...)
	steps = append(steps, p.measuring(filter(watches(), p))...)
	steps = append(steps, p.measuring(filter(deletions(), p))...)
	steps = append(steps, func(_ context.Context, s *subject) error { return s.remember(&s.results.PeakMemory, "VmHWM") })
	if len(filter(extensions(), p)) > 0 {
		steps = append(steps, p.extensionSteps()...)
	}
	if wanted := filter(selections(), p); len(wanted) > 0 { // otherwise no work needs the many objects
		steps = append(steps, p.measuring(crowds())...)
		steps = append(steps, p.measuring(wanted)...)
	}
	return steps
}

// run executes the steps on new servers. Each step, such as a round of a work, runs on one server after the other
// before the next step begins, because the load that other processes put on the machine changes within seconds, and
// then affects all servers equally.
func run(ctx context.Context, steps []step, subjects []*subject) error {
	for _, step := range steps {
		for _, s := range subjects {
			if err := step(ctx, s); err != nil {
				return fmt.Errorf("%s: %w", s.Name, err)
			}
		}
	}
	return nil
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
	*figure, err = measure.Memory(s.PIDs, name)
	return err
}

// warmUp creates and deletes objects in a namespace that is not measured, so that the server has initialized everything
// that it initializes at the first use.
func (s *subject) warmUp(ctx context.Context) error {
	for _, name := range []string{namespace, manyNamespace, warmUpNamespace} {
		body := fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":%q}}`, name)
		if _, _, err := s.client.do(ctx, request{http.MethodPost, "/api/v1/namespaces", asJSON, asJSON, body}); err != nil {
			return err
		}
	}
	for _, w := range creations() {
		elsewhere := func(i int) request { return w.request(i).inNamespace(warmUpNamespace) }
		other := work{parallel: w.parallel, count: warmUpRequests, request: elsewhere}
		if _, err := s.repeat(ctx, other, least{}); err != nil {
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
