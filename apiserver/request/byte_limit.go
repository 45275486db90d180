package request

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// ByteLimit bounds the bytes that requests hold at the same time. Those that wait are served in their order.
type ByteLimit struct {
	bound int64
	free  *semaphore.Weighted
}

// NewByteLimit returns a limit of so many bytes.
func NewByteLimit(bound int64) *ByteLimit {
	return &ByteLimit{bound: bound, free: semaphore.NewWeighted(bound)}
}

// Acquire waits until so many bytes more may be held, or fails with the error of ctx. More than the bound count as the
// bound: such a request is served when no other holds anything. The caller must call release once, and must not acquire
// more of the same limit before: two such callers could wait for each other.
func (l *ByteLimit) Acquire(ctx context.Context, bytes int64) (release func(), err error) {
	bytes = min(bytes, l.bound)
	if bytes <= 0 {
		return func() {}, nil
	}
	if err := l.free.Acquire(ctx, bytes); err != nil {
		return nil, err
	}
	return func() { l.free.Release(bytes) }, nil
}
