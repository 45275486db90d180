package etcd

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"quorate.dev/test/upstream"
)

// TestRestart restarts single members that replay their whole log. raft panics if a member campaigns after entries that
// raft has not applied were compacted. The panic depends on scheduling: with one processor it occurs within a few
// restarts. Without QUORATE_RESTARTS=full, the test has no fsync and one processor. QUORATE_RESTARTS=full (make
// restarts) repeats it with fsync, and both on all processors.
func TestRestart(t *testing.T) {
	upstream.NeedsTime(t)
	forms := []restartForm{{"one processor", 1, true}}
	if os.Getenv("QUORATE_RESTARTS") == "full" {
		all := runtime.GOMAXPROCS(0)
		forms = append(forms, restartForm{"one processor, fsync", 1, false}, restartForm{"all processors", all, true},
			restartForm{"all processors, fsync", all, false})
	}
	for _, form := range forms {
		for entries, times := range map[int]int{300: 50, 3000: 20} {
			t.Run(fmt.Sprintf("%d entries, %d times, %s", entries, times, form.name), func(t *testing.T) {
				defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(form.processors))
				restart(t, entries, times, form.unsafeNoFsync)
			})
		}
	}
}

// restartForm is how TestRestart runs its members.
type restartForm struct {
	name          string
	processors    int
	unsafeNoFsync bool
}

func restart(t *testing.T, entries, times int, unsafeNoFsync bool) {
	member := single(t)
	member.UnsafeNoFsync = true // while the log is written
	m := start(t, member)
	await(t, "ready", m.Ready())
	for i := range entries {
		if _, err := m.Client().Put(t.Context(), fmt.Sprint("key-", i), strings.Repeat("x", 100)); err != nil {
			t.Fatal(err)
		}
	}
	stop(t, m)
	member.UnsafeNoFsync = unsafeNoFsync
	var slowest time.Duration
	for range times {
		began := time.Now()
		m := start(t, member)
		await(t, "ready", m.Ready())
		slowest = max(slowest, time.Since(began))
		stop(t, m)
	}
	t.Logf("the slowest start took %v", slowest)
}

func stop(t *testing.T, m *Member) {
	t.Helper()
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
}
