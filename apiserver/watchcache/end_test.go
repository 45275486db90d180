package watchcache

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// TestRunEndsWithoutCaches ends caches of which no collection has been read, so that there is nothing to compare.
func TestRunEndsWithoutCaches(t *testing.T) {
	t.Parallel()
	caches := New(storage.New(etcdtest.Client(t), "/registry"), Options{
		Clock: clock.RealClock{}, Logger: logr.Discard(), Checks: time.Hour,
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- caches.Run(ctx) }()
	cancel()
	timeout := time.NewTimer(10 * time.Second)
	defer timeout.Stop()
	select {
	case err := <-ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("got the error %v", err)
		}
	case <-timeout.C:
		t.Fatal("Run does not return after the end of its context")
	}
}
