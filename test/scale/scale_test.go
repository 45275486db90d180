package main

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"quorate.dev/test/measure"
	"quorate.dev/test/upstream"
)

const timeout = 10 * time.Second

// startCluster starts a server with a cluster whose watches are in sync and whose nodes work. They end with the test.
func startCluster(t *testing.T, arguments ...string) (context.Context, *cluster) {
	t.Helper()
	upstream.NeedsProcesses(t)
	o, err := parse(arguments)
	if err != nil {
		t.Fatal(err)
	}
	server, release, err := o.startServer(t.Context(), measure.StartOurs, filepath.Join(t.TempDir(), "ours"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Stop(); err != nil {
			t.Error(err)
		}
		if err := release(); err != nil {
			t.Error(err)
		}
	})
	c, err := newCluster(o, server, t.TempDir(), t.Logf)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := c.begin(t.Context())
	t.Cleanup(stop)
	for _, phase := range []func(context.Context) error{c.create, c.connect} {
		if err := phase(ctx); err != nil {
			t.Fatal(err)
		}
	}
	c.work(ctx)
	return ctx, c
}

// waitFor fails the test unless a condition holds within the timeout.
func waitFor(t *testing.T, what string, holds func() bool) {
	t.Helper()
	if err := await(t.Context(), timeout, holds); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// podChanges returns the number of pods that nodes have written.
func (c *cluster) podChanges() (total int64) {
	for _, node := range c.nodes {
		total += node.PodChanges.Load()
	}
	return total
}

// TestSmallCluster checks that all watches of ten nodes get into sync, that they receive all events, and that a watch
// that is lost and an event that is missing are noticed.
func TestSmallCluster(t *testing.T) {
	ctx, c := startCluster(t, "--nodes=10", "--pods=30", "--services=20", "--lease-interval=1s", "--status-interval=1s")
	total := int64(5*10 + 4*observerCount)
	if got := c.stats.InSync.Load(); got != total {
		t.Fatalf("%d watches are in sync, want %d: %v", got, total, c.stats.Problems())
	}
	missing, err := c.churn.during(ctx, func(context.Context) error {
		waitFor(t, "events", func() bool { return c.stats.Delivered.Load() > 100 })
		waitFor(t, "pods that nodes have written", func() bool { return c.podChanges() > 5 })
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if missing != 0 || c.stats.Lost.Load() != 0 || c.stats.Failed.Load() != 0 {
		t.Errorf("%d events are missing, %d watches lost, %d requests failed: %v",
			missing, c.stats.Lost.Load(), c.stats.Failed.Load(), c.stats.Problems())
	}
	if times := &c.stats.Timings().Events; times.Count() == 0 || times.Max() > timeout {
		t.Errorf("%d event delays, at most %v", times.Count(), times.Max())
	}
	c.churn.slices.Add(1) // a change that has not happened, which every client but the writers watches
	if got, want := c.churn.missing(), int64(10+observerCount); got != want {
		t.Errorf("%d events are missing, want %d", got, want)
	}
	c.churn.slices.Add(-1)
	checkCut(t, c, total)
	checkReconnect(t, ctx, c, total)
}

// checkCut checks that the watches of a connection that is cut count as lost, and are resumed without a gap.
func checkCut(t *testing.T, c *cluster, total int64) {
	t.Helper()
	c.nodes[3].Cut()
	waitFor(t, "five lost watches", func() bool { return c.stats.Lost.Load() == 5 })
	waitFor(t, "resumed watches", func() bool { return c.stats.InSync.Load() == total })
	if got := c.stats.Relisted.Load(); got != 0 {
		t.Errorf("%d watches began again instead of being resumed", got)
	}
}

// checkReconnect checks that watches that are dropped on purpose do not count as lost.
func checkReconnect(t *testing.T, ctx context.Context, c *cluster, total int64) {
	t.Helper()
	lost := c.stats.Lost.Load()
	missing, err := c.churn.during(ctx, c.reconnect)
	if err != nil || missing != 0 {
		t.Errorf("%d events are missing, %v", missing, err)
	}
	if got := c.stats.Lost.Load(); got != lost || c.stats.InSync.Load() != total {
		t.Errorf("%d watches lost, want %d; %d in sync, want %d", got, lost, c.stats.InSync.Load(), total)
	}
}

func TestOptions(t *testing.T) {
	o, err := parse([]string{"--storm=all"})
	if err != nil || len(o.storms) != len(allStorms()) {
		t.Errorf("got %v, %v", o.storms, err)
	}
	for _, wrong := range []string{"--storm=tea", "--only=both", "--nodes=0", "--changes=0"} {
		if _, err := parse([]string{wrong}); err == nil || !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: got error %v", wrong, err)
		}
	}
}

func TestReport(t *testing.T) {
	peer, ours := &Result{}, &Result{}
	peer.add("hold", "cores", 0.74, "")
	peer.add("connect", "time", 90, seconds)
	ours.add("hold", "cores", 0.42, "")
	ours.add("hold", "most resident", 300<<20, bytesUnit)
	ours.none("hold: events missing", 0)
	ours.none("hold: watches lost", 3)
	ours.limit("hold: p99 of writes", 999*time.Millisecond)
	ours.limit("hold: p99 of GETs", time.Second)
	report := Report{Peer: peer, Ours: ours}
	text := report.markdown()
	for _, want := range []string{
		"| hold | peer | ours |", "| cores | 0.74 | 0.42 |", "| most resident | not run | 300 MiB |",
		"| time | 90.00 s | not run |", "ours misses an objective: hold: watches lost: 3, want none",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("missing %s in\n%s", want, text)
		}
	}
	if got := report.violations(); got != 2 {
		t.Errorf("%d violations, want 2", got)
	}
}
