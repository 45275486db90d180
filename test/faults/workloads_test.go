package faults

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"quorate.dev/test/faults/workload"
)

// running has the workloads of a run by name.
type running map[string]workload.Workload

// startWorkloads starts workloads, which end with ctx.
func (c *cluster) startWorkloads(ctx context.Context, names []string, seed uint64) (running, error) {
	all, err := workload.New(c.configurations, seed)
	if err != nil {
		return nil, err
	}
	started := running{}
	for _, name := range names {
		if all[name] == nil {
			return nil, fmt.Errorf("there is no workload %q", name)
		}
		if err := all[name].Start(ctx); err != nil {
			return nil, fmt.Errorf("start the workload %s: %w", name, err)
		}
		started[name] = all[name]
	}
	return started, nil
}

func (w running) stop() {
	for _, workload := range w {
		workload.Stop()
	}
}

// check checks all workloads at the same time, and logs how long each check took.
func (w running) check(ctx context.Context, logf func(string, ...any)) (violations []error) {
	var mu sync.Mutex
	var checks sync.WaitGroup
	for name, workload := range w {
		checks.Go(func() {
			begin := time.Now()
			found := workload.Check(ctx)
			mu.Lock()
			defer mu.Unlock()
			logf("the check of %s took %v", name, time.Since(begin).Round(10*time.Millisecond))
			violations = append(violations, found...)
		})
	}
	checks.Wait()
	return violations
}

// String has the number of observations of each workload.
func (w running) String() string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(w)) {
		all = append(all, fmt.Sprintf("%s %d", name, w[name].Observed()))
	}
	return strings.Join(all, ", ")
}
