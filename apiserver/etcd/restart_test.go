package etcd

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
)

// TestRestart restarts single members that replay their whole log. raft panics if a member campaigns after entries that
// raft has not applied were compacted. The panic depends on scheduling; with one processor it occurs within a few
// restarts. QUORATE_RESTARTS=full restarts more often, on all processors, and with fsync.
func TestRestart(t *testing.T) {
	full := os.Getenv("QUORATE_RESTARTS") == "full"
	if !full {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	}
	for entries, times := range map[int]int{300: 50, 3000: 20} {
		t.Run(fmt.Sprintf("%d entries", entries), func(t *testing.T) {
			if !full {
				times = 12
			}
			restart(t, entries, times, true)
		})
		t.Run(fmt.Sprintf("%d entries, fsync", entries), func(t *testing.T) {
			if !full {
				t.Skip("QUORATE_RESTARTS=full runs this")
			}
			restart(t, entries, times, false)
		})
	}
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
