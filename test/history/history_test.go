// Package history records the observations of concurrent clients of three replicas with embedded etcd members, or on the
// store that QUORATE_STORE selects, while replicas are killed and etcd is compacted. It checks that one order of writes explains them: each object is
// linearizable, watches miss, repeat and reorder nothing, and consistent lists show exactly one revision.
package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"quorate.dev/test/upstream"
)

// plan has the duration of a run and the frequency of kills.
type plan struct {
	duration   time.Duration
	compaction time.Duration // interval
	calm       time.Duration // longest time between two kills
	absence    time.Duration // longest time that a killed replica is down
	writers    int
	readers    int
	watchers   int
	fsync      bool
}

var (
	short = plan{
		duration: 10 * time.Second, compaction: 4 * time.Second, calm: 2 * time.Second, absence: time.Second,
		writers: 5, readers: 3, watchers: 4,
	}
	// full is for `make history`, with QUORATE_HISTORY set to a duration.
	full = plan{
		compaction: 20 * time.Second, calm: 8 * time.Second, absence: 6 * time.Second,
		writers: 8, readers: 6, watchers: 8, fsync: true,
	}
)

func chosen(t *testing.T) plan {
	t.Helper()
	value := os.Getenv("QUORATE_HISTORY")
	if value == "" {
		return short
	}
	duration, err := time.ParseDuration(value)
	if err != nil {
		t.Fatalf("QUORATE_HISTORY is a duration: %v", err)
	}
	p := full
	p.duration = duration
	return p
}

// chosenSeed is the seed of all random choices of clients and kills. Scheduling is not reproducible.
func chosenSeed(t *testing.T) uint64 {
	t.Helper()
	value := os.Getenv("QUORATE_HISTORY_SEED")
	if value == "" {
		return rand.Uint64()
	}
	seed, err := strconv.ParseUint(value, 10, 64)
	if err != nil {
		t.Fatalf("QUORATE_HISTORY_SEED is a number: %v", err)
	}
	return seed
}

// choices returns a source of random choices for one actor.
func choices(seed, actor uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, actor)) }

// Actors, each with its own source of choices.
const (
	killer = iota
	firstWriter
	firstReader  = 1000
	firstWatcher = 2000
)

func TestHistory(t *testing.T) {
	upstream.NeedsProcesses(t)
	p, seed := chosen(t), chosenSeed(t)
	t.Logf("QUORATE_HISTORY_SEED=%d", seed)
	r := startReplicas(t, p, seed)
	h := newRecord(seed)
	working, endWork := context.WithTimeout(t.Context(), p.duration)
	defer endWork()
	watching, endWatches := context.WithCancel(t.Context())
	defer endWatches()
	watchers := r.watch(watching, h, p, seed)
	work := r.work(working, h, p, seed)
	kills := r.kill(working, p, seed)
	work.Wait()
	r.mustBeReady()
	watchers.mustReach(t, r.writeLast(t))
	endWatches()
	watchers.Wait()
	h.chains = watchers.chains()
	faults := h.check()
	t.Logf("%s; %d kills", h.summary(), kills())
	if len(faults) == 0 {
		h.mustHaveShown(t, p)
		return
	}
	for _, fault := range faults[:min(len(faults), 10)] {
		t.Error(fault)
	}
	directory, err := h.keep(faults)
	if err != nil {
		t.Error(err)
	}
	t.Errorf("%d faults with seed %d; the history is in %s", len(faults), seed, directory)
}

// mustHaveShown fails a run with too few operations, kills or events to be meaningful.
func (h *record) mustHaveShown(t *testing.T, p plan) {
	t.Helper()
	known := 0
	for _, operations := range h.operations {
		for _, o := range operations {
			if o.Output.result != unknown {
				known++
			}
		}
	}
	resumed := 0
	for _, c := range h.chains {
		resumed += c.Resumed
	}
	if least := int(p.duration.Seconds()) * 5; known < least || len(h.lists) == 0 || resumed == 0 {
		t.Errorf("only %d operations, %d lists and %d resumed watches: the run has shown nothing", known, len(h.lists),
			resumed)
	}
}

func (h *record) summary() string {
	writes, reads, unknowns := 0, 0, 0
	for _, operations := range h.operations {
		for _, o := range operations {
			switch {
			case o.Output.result == unknown:
				unknowns++
			case o.Input.Kind == get:
				reads++
			default:
				writes++
			}
		}
	}
	events, resumed := 0, 0
	for _, c := range h.chains {
		events, resumed = events+len(c.Events), resumed+c.Resumed
	}
	return fmt.Sprintf("%d objects, %d writes, %d reads, %d unknown outcomes, %d lists; "+
		"%d watches resumed %d times, with %d events",
		len(h.operations), writes, reads, unknowns, len(h.lists), len(h.chains), resumed, events)
}
