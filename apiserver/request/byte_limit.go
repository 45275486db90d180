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
// bound: such a request is served when no other holds anything. A caller that holds some must not acquire more: two such
// callers could wait for each other.
func (l *ByteLimit) Acquire(ctx context.Context, bytes int64) (*Held, error) {
	bytes = min(bytes, l.bound)
	if bytes <= 0 {
		return &Held{limit: l}, nil
	}
	if err := l.free.Acquire(ctx, bytes); err != nil {
		return nil, err
	}
	return &Held{limit: l, bytes: bytes}, nil
}

// Held is what one request holds of a limit. It is used by one goroutine.
type Held struct {
	limit *ByteLimit
	bytes int64
}

// Shrink gives back what is held above so many bytes.
func (h *Held) Shrink(to int64) {
	if to < h.bytes {
		h.limit.free.Release(h.bytes - to)
		h.bytes = to
	}
}

// Release gives back all that is held. Doing so again has no effect.
func (h *Held) Release() { h.Shrink(0) }
