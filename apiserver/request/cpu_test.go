package request

import (
	"context"
	"errors"
	"testing"
	"time"
)

// TestLimitCPU works until the context ends.
func TestLimitCPU(t *testing.T) {
	const limit = 100 * time.Millisecond
	ctx, stop := LimitCPU(t.Context(), limit)
	defer stop()
	began := time.Now()
	work := 0
	for ctx.Err() == nil {
		work++
	}
	t.Logf("%d looks at the context", work)
	if cause := context.Cause(ctx); !errors.Is(cause, ErrCPU) {
		t.Errorf("got %v, want %v", cause, ErrCPU)
	}
	if passed := time.Since(began); passed < limit {
		t.Errorf("the context has ended after %v", passed)
	}
}

// TestWaitingUsesNoCPU waits longer than the limit. The context ends with stop only.
func TestWaitingUsesNoCPU(t *testing.T) {
	ctx, stop := LimitCPU(t.Context(), cpuSampling/2)
	select {
	case <-ctx.Done():
		t.Error("the context has ended without work")
	case <-time.After(4 * cpuSampling): // four looks at the clock
	}
	stop()
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		t.Errorf("got %v, want %v", cause, context.Canceled)
	}
}
