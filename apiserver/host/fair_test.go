package host

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/authorization"
)

// TestOneUserCannotUseUpReviews has one user cause as many reviews as possible; another one must not wait.
func TestOneUserCannotUseUpReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newFairLimiter()
		as := func(name string) context.Context {
			return request.WithUser(t.Context(), &user.DefaultInfo{Name: name})
		}
		var rejected atomic.Int64
		var running sync.WaitGroup
		for range 1000 {
			running.Go(func() {
				switch err := limiter.Wait(as("mallory")); {
				case errors.Is(err, authorization.ErrBusy):
					rejected.Add(1)
				case err != nil:
					t.Error(err)
				}
			})
		}
		synctest.Wait() // all goroutines have ended, or wait
		if free := limiter.total.Tokens(); free < burst/2-qps/userShare {
			t.Errorf("one user has left %v of %d reviews", free, burst)
		}
		for range 100 {
			if !limiter.of(as("alice")).Allow() || !limiter.total.Allow() {
				t.Fatal("another user must wait")
			}
		}
		running.Wait()
		if n := rejected.Load(); n < 600 {
			t.Errorf("%d reviews of one user were rejected", n)
		}
	})
}

// TestOneUserMayUseFreeReviews checks that a user alone is not limited to its share.
func TestOneUserMayUseFreeReviews(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := newFairLimiter()
		for i := range burst / 2 {
			if err := limiter.Wait(t.Context()); err != nil {
				t.Fatalf("review %d: %v", i, err)
			}
		}
	})
}
