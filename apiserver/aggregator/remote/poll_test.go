package remote

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// TestPanicOfOneServer checks that a download which panics is retried, and does not end the downloads from other
// servers.
func TestPanicOfOneServer(t *testing.T) {
	bad, good := Server{Name: "bad"}, Server{Name: "good"}
	panicked, downloaded := 0, make(chan Server, 2)
	s := schedule{interval: time.Hour, retry: time.Millisecond, retryAtMost: time.Millisecond, workers: 1, retriers: 1}
	p := newPoll("test", s, clock.RealClock{}, logr.Discard(), func(_ context.Context, server Server) error {
		if server == bad && panicked < 2 { // needs no lock: each queue has one worker, and a server is in one queue at a time
			panicked++
			panic("invalid document")
		}
		downloaded <- server
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); p.run(ctx) }()
	p.changed(bad, true)
	p.changed(good, true)
	seen := map[Server]bool{}
	for len(seen) < 2 {
		select {
		case server := <-downloaded:
			seen[server] = true
		case <-time.After(time.Minute):
			t.Fatalf("only %v", seen)
		}
	}
	cancel()
	<-ended
	if panicked != 2 {
		t.Errorf("%d panics", panicked)
	}
}

// TestFirstChangeIsDownloadedImmediately checks that a new APIService is followed by a download without a delay, and
// that further changes are followed by one download, after the pause.
func TestFirstChangeIsDownloadedImmediately(t *testing.T) {
	clock := clocktesting.NewFakeClock(time.Now())
	downloaded := make(chan time.Time, 10)
	s := schedule{
		pause: time.Second, interval: time.Hour, retry: time.Hour, retryAtMost: time.Hour, workers: 1, retriers: 1,
	}
	p := newPoll("test", s, clock, logr.Discard(), func(context.Context, Server) error {
		downloaded <- clock.Now()
		return nil
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); p.run(ctx) }()
	begin, server := clock.Now(), Server{Name: "new"}
	p.changed(server, false)
	if at := <-downloaded; !at.Equal(begin) {
		t.Errorf("the first download started after %v", at.Sub(begin))
	}
	p.changed(server, true)
	p.changed(server, true)
	for waiting := true; waiting; { // the queue's clock moves when it has a waiter
		select {
		case at := <-downloaded:
			if at.Sub(begin) < s.pause {
				t.Errorf("the second download started after %v", at.Sub(begin))
			}
			waiting = false
		case <-time.After(time.Millisecond):
			clock.Step(100 * time.Millisecond)
		}
	}
	cancel()
	<-ended
	if n := len(downloaded); n > 0 {
		t.Errorf("%d further downloads", n)
	}
}
