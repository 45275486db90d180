// Package writelimit bounds how often a controller writes the same object.
//
// A controller that fails in a way that it does not notice, or two controllers that disagree, can write an object as
// fast as the API server permits, until the database is full. A Limiter refuses such writes: each pair of a writer and
// an object has a token bucket. Writes of different objects do not affect each other, so that a controller that handles
// many objects, such as the deletion of a large namespace, is never delayed. The caller returns the refusal as the
// error of the write, and its own back-off decides when it tries again.
//
// A bucket is represented by the time at which it will be full again. A full bucket needs no entry, so that the memory
// of a Limiter is bounded by the writes of the time in which a bucket fills.
package writelimit

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// Limit bounds the writes of one object by one writer.
type Limit struct {
	// Burst is the number of writes that are permitted after a time without writes.
	Burst int
	// PerHour is the number of writes per hour that are permitted afterwards.
	PerHour int
}

// interval is the time in which a bucket gains a token.
func (l Limit) interval() time.Duration { return time.Hour / time.Duration(l.PerHour) }

// Error is the refusal of a write.
type Error struct {
	Writer, Object string
	Limit          Limit
	// After is the time until the next write is permitted.
	After time.Duration
}

// Error implements error.
func (e *Error) Error() string {
	return fmt.Sprintf("refusing to write %s: %s has written it too often (more than %d times, then %d times per hour); "+
		"the next write is permitted in %s", e.Object, e.Writer, e.Limit.Burst, e.Limit.PerHour,
		e.After.Round(time.Millisecond))
}

// Limiter bounds and counts the writes of a process. It is safe for concurrent use.
type Limiter struct {
	limit  Limit
	clock  clock.PassiveClock
	writes *prometheus.CounterVec

	mu sync.Mutex
	// full is the time at which each bucket is full again. Invariant: no time is further in the future than Burst
	// intervals.
	full map[bucket]time.Time
	// sweepAt is the size of full at which buckets that are full again are removed.
	sweepAt int
}

// bucket identifies a token bucket.
type bucket struct{ writer, object string }

// minSweep is the minimum number of buckets between two sweeps.
const minSweep = 1024

// New returns a limiter. writes counts its decisions by writer and result; see NewCounter.
func New(limit Limit, clock clock.PassiveClock, writes *prometheus.CounterVec) *Limiter {
	return &Limiter{limit: limit, clock: clock, writes: writes, full: map[bucket]time.Time{}, sweepAt: minSweep}
}

// NewCounter returns the counter of a limiter, which the caller registers.
func NewCounter(help string) *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "quorate_own_writes_total", Help: help},
		[]string{"writer", "result"})
}

// Take takes a token for a write, or returns an *Error if there is none. A nil Limiter permits everything.
func (l *Limiter) Take(writer, object string) error {
	if l == nil {
		return nil
	}
	if after := l.take(bucket{writer, object}); after > 0 {
		l.writes.WithLabelValues(writer, "refused").Inc()
		return &Error{Writer: writer, Object: object, Limit: l.limit, After: after}
	}
	l.writes.WithLabelValues(writer, "permitted").Inc()
	return nil
}

// Count counts a write that is not limited.
func (l *Limiter) Count(writer string) {
	if l != nil {
		l.writes.WithLabelValues(writer, "permitted").Inc()
	}
}

// take takes a token and returns 0, or returns the time until there is one. Check and change are one step under the
// lock: of two concurrent writes only one gets the last token.
func (l *Limiter) take(b bucket) (after time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.clock.Now()
	full := l.full[b]
	if full.Before(now) {
		full = now
	}
	full = full.Add(l.limit.interval())
	if after = full.Sub(now) - time.Duration(l.limit.Burst)*l.limit.interval(); after > 0 {
		return after
	}
	l.full[b] = full
	if len(l.full) >= l.sweepAt {
		l.sweep(now)
	}
	return 0
}

// sweep removes buckets that are full. The caller holds the lock. The next sweep follows when the number of buckets has
// doubled, so that sweeping costs a constant time per write.
func (l *Limiter) sweep(now time.Time) {
	for b, full := range l.full {
		if !full.After(now) {
			delete(l.full, b)
		}
	}
	l.sweepAt = max(minSweep, 2*len(l.full))
}

type writerKey struct{}

// WithWriter returns a context that attributes all writes to the named writer, whose limits apply to them.
func WithWriter(ctx context.Context, writer string) context.Context {
	return context.WithValue(ctx, writerKey{}, writer)
}

// Writer returns the writer of a context, "" for requests of clients, whose writes are not limited.
func Writer(ctx context.Context) string {
	writer, _ := ctx.Value(writerKey{}).(string)
	return writer
}
