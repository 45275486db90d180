// Package history records the observations of concurrent clients of three replicas with embedded etcd members, or on
// the store that QUORATE_STORE selects, while replicas are killed and etcd is compacted. It checks that one order of
// writes explains them: each object is linearizable, watches miss, repeat and reorder nothing, and consistent lists
// show exactly one revision.
package history

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"quorate.dev/test/history/check"
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

// choices returns the source of random choices of kills.
func choices(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0)) }

func TestHistory(t *testing.T) {
	upstream.NeedsProcesses(t)
	p, seed := chosen(t), chosenSeed(t)
	t.Logf("QUORATE_HISTORY_SEED=%d", seed)
	r := startReplicas(t, p, seed)
	h := check.NewRecord()
	site := &check.Site{Clients: r.clients, Objects: check.ConfigMaps(namespace), Record: h}
	load := check.Load{Writers: p.writers, Readers: p.readers, Watchers: p.watchers, LongestWatch: p.compaction}
	working, endWork := context.WithTimeout(t.Context(), p.duration)
	defer endWork()
	watching, endWatches := context.WithCancel(t.Context())
	defer endWatches()
	watchers := site.Watch(watching, load, seed)
	work := site.Work(working, load, seed)
	kills := r.kill(working, p, seed)
	work.Wait()
	r.mustBeReady()
	last, err := site.Finish(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	reaching, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := watchers.Reach(reaching, last); err != nil {
		t.Fatal(err)
	}
	endWatches()
	watchers.Finish()
	faults := h.Check()
	t.Logf("%s; %d kills", h.Summary(), kills())
	if len(faults) == 0 {
		mustHaveShown(t, h.Summary(), p)
		return
	}
	for _, fault := range faults[:min(len(faults), 10)] {
		t.Error(fault)
	}
	directory := filepath.Join(os.TempDir(), fmt.Sprintf("quorate-history-%d", seed))
	if err := h.Keep(directory, faults); err != nil {
		t.Error(err)
	}
	t.Errorf("%d faults with seed %d; the history is in %s", len(faults), seed, directory)
}

// mustHaveShown fails a run with too few operations, kills or events to be meaningful.
func mustHaveShown(t *testing.T, s check.Summary, p plan) {
	t.Helper()
	if least := int(p.duration.Seconds()) * 5; s.Known() < least || s.Lists == 0 || s.Resumed == 0 {
		t.Errorf("the run has shown nothing: only %s", s)
	}
}
