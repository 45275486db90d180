package builtintest

import (
	"context"
	"testing"
	"time"
)

// Must returns a function that returns its first argument, and fails the test if its second argument is an error.
func Must[T any](t testing.TB) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// Eventually waits until a condition holds, and fails the test if the condition does not hold within 10 s.
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

// Background calls run in a goroutine. The returned function cancels the context and waits until run has returned; so
// does the end of the test.
func Background(t testing.TB, run func(ctx context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); run(ctx) }()
	stop = func() { cancel(); <-done }
	t.Cleanup(stop)
	return stop
}
