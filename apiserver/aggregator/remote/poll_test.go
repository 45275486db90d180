package remote

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
)

// TestPanicOfOneServer checks that a panic while the document of one server is read is retried, and does not end the downloads
// from others.
func TestPanicOfOneServer(t *testing.T) {
	bad, good := Server{Name: "bad"}, Server{Name: "good"}
	panicked, downloaded := 0, make(chan Server, 2)
	s := schedule{interval: time.Hour, retry: time.Millisecond, retryAtMost: time.Millisecond, workers: 1, retriers: 1}
	p := newPoll("test", s, clock.RealClock{}, logr.Discard(), func(_ context.Context, server Server) error {
		if server == bad && panicked < 2 { // one worker of each queue, and a server is in one queue at a time
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
