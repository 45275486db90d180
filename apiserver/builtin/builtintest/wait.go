package builtintest

import (
	"context"
	"testing"
	"time"
)

// Must returns a function that unwraps a result and fails the test on an error.
func Must[T any](t testing.TB) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// Eventually waits until a condition holds and fails the test when it does not within 10 s.
func Eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			t.Fatalf("timed out waiting: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// Background starts run in a goroutine. The returned function cancels its context and waits for it to return; the end
// of the test does the same.
func Background(t testing.TB, run func(ctx context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}
