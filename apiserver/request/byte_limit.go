package request

import (
	"context"

	"golang.org/x/sync/semaphore"
)

// ByteLimit bounds the bytes that requests hold concurrently. Waiting requests are served in order.
type ByteLimit struct {
	bound int64
	free  *semaphore.Weighted
}

// NewByteLimit returns a limit of the given number of bytes.
func NewByteLimit(bound int64) *ByteLimit {
	return &ByteLimit{bound: bound, free: semaphore.NewWeighted(bound)}
}

// Acquire waits until the bytes may be held, or returns the error of ctx. More than the limit count as the limit, so
// that such a request is served when no other holds anything. A caller must not acquire again before Release, because
// two such callers could deadlock.
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

// Held is one request's share of a limit. It is not safe for concurrent use.
type Held struct {
	limit *ByteLimit
	bytes int64
}

// Shrink returns all but the given number of bytes.
func (h *Held) Shrink(to int64) {
	if to < h.bytes {
		h.limit.free.Release(h.bytes - to)
		h.bytes = to
	}
}

// Release returns all bytes. Further calls have no effect.
func (h *Held) Release() { h.Shrink(0) }
