package bootstrap_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// failing is a server on which the next creates fail.
type failing struct {
	*builtintest.Server
	refusals atomic.Int32
}

func (u *failing) Create(
	ctx context.Context, key resource.Key, object runtime.Object, options resource.WriteOptions,
) (runtime.Object, error) {
	if u.refusals.Add(-1) >= 0 {
		return nil, storage.ErrUnavailable
	}
	return u.Server.Create(ctx, key, object, options)
}

// insist creates the namespaces and returns the time that took on the fake clock.
func insist(t *testing.T, u *failing) (time.Duration, error) {
	t.Helper()
	fake := clocktesting.NewFakeClock(time.Now())
	begun := fake.Now()
	b := bootstrap.New(u, fake, logr.Discard())
	done := make(chan error, 1)
	go func() { done <- b.Retry(t.Context(), b.Namespaces) }()
	for {
		select {
		case err := <-done:
			return fake.Since(begun), err
		case <-time.After(time.Millisecond):
			if fake.HasWaiters() {
				fake.Step(time.Second)
			}
		}
	}
}

// TestBootstrapRetriesUnavailableStorage: until a timeout.
func TestBootstrapRetriesUnavailableStorage(t *testing.T) {
	u := &failing{Server: builtintest.NewServer(t, builtin.Options{}, nil)}
	u.refusals.Store(5)
	if _, err := insist(t, u); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		must[runtime.Object](t)(u.Get(t.Context(),
			resource.Key{GroupResource: namespaces, Name: name}, resource.ReadOptions{}))
	}
	u = &failing{Server: builtintest.NewServer(t, builtin.Options{}, nil)}
	u.refusals.Store(1000)
	if took, err := insist(t, u); err == nil || took != 30*time.Second {
		t.Errorf("permanently unavailable storage: %v after %v", err, took)
	}
}

// TestLoopsBackOff: up to the period of the loop.
func TestLoopsBackOff(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	passes := make(chan time.Time, 100)
	loop := bootstrap.Loop{Name: "failing", Every: 10 * time.Second, Pass: func(context.Context) error {
		passes <- fake.Now()
		return storage.ErrUnavailable
	}}
	background(t, func(ctx context.Context) { loop.Run(ctx, fake, logr.Discard()) })
	var gaps []time.Duration
	for last := <-passes; len(gaps) < 6; {
		select {
		case next := <-passes:
			gaps = append(gaps, next.Sub(last))
			last = next
		case <-time.After(time.Millisecond):
			if fake.HasWaiters() {
				fake.Step(time.Second)
			}
		}
	}
	if want := []time.Duration{1e9, 2e9, 4e9, 8e9, 10e9, 10e9}; !slices.Equal(gaps, want) {
		t.Errorf("got %v, want %v", gaps, want)
	}
}
