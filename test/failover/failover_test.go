// Package failover kills and restarts the replicas of an API server in turn, with many objects, many informers and
// writers: no client reads an older revision than before, acknowledged writes are stored at the end, and every informer
// has exactly the stored objects.
package failover

import (
	"os"
	"testing"
	"time"

	"quorate.dev/test/upstream"
)

// size of the load. `make failover` sets QUORATE_FAILOVER=full for the full one.
type size struct {
	objects, informers int
	rounds             int // each kills every replica once
}

var (
	small = size{objects: 10_000, informers: 100, rounds: 1}
	full  = size{objects: 50_000, informers: 500, rounds: 2}
)

// writes is the number of acknowledged writes between two kills or starts.
const writes = 60

func chosen() size {
	if os.Getenv("QUORATE_FAILOVER") == "full" {
		return full
	}
	return small
}

func TestTwoReplicas(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	failOver(t, upstream.StartQuorate, upstream.StartQuorate)
}

func TestBesideKubernetes(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	failOver(t, upstream.StartQuorate, upstream.StartKubernetes)
}

func failOver(t *testing.T, launches ...upstream.Launch) {
	size := chosen()
	begin := time.Now()
	lap := func(what string) {
		t.Logf("%s: %s", what, time.Since(begin).Round(10*time.Millisecond))
		begin = time.Now()
	}
	r := startReplicas(t, launches...)
	lap("two replicas ready")
	r.load(size)
	t.Logf("%d objects", size.objects)
	lap("loaded")
	watching := r.watch(size)
	lap("informers filled")
	first := r.lists.Load()
	writing := r.write(size)
	writing.await(r, writes)
	for range size.rounds {
		for _, one := range r.all {
			one.Server().Kill()
			writing.await(r, writes)
			r.start(one)
			writing.await(r, writes)
		}
	}
	writing.end()
	lap("replicas killed and restarted in turn")
	r.answers.mustBeStored(r)
	watching.mustEqualStorage(r)
	lap("informers equal to storage")
	t.Logf("%d informers, %d lists at first and %d later; %d writes acknowledged, %d failed, %d reads",
		size.informers, first, r.lists.Load()-first, writing.acknowledged.Load(),
		writing.failures.Load(), writing.reads.Load())
}
