package watchcache

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// progress has the revision that the watch stream has reached, for all caches of a store together, and the readers
// that wait for a later one.
type progress struct {
	// seen is the revision that the watch stream has reached. It is written under mu. Invariant: each ready cache has
	// published all events up to it.
	seen   atomic.Int64
	wanted chan struct{} // capacity 1; has a value if a reader has begun to wait

	mu      sync.Mutex    // never held together with another lock
	waiters []*waiter     // Invariant: all targets are greater than seen.
	rewound chan struct{} // closed by the next rewind; nil: no rewind is requested

	// highest is the greatest revision that a request to the store has returned since the last rewind. It may be less
	// than seen.
	highest atomic.Int64
	rewinds atomic.Int64 // number of times that the store has returned to an earlier revision
}

// waiter is a reader that waits for a revision.
type waiter struct {
	target int64
	done   chan struct{}
}

// advance increases seen to a revision and releases the readers that wait for it. It ignores an earlier revision.
func (p *progress) advance(revision int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if revision <= p.seen.Load() {
		return
	}
	p.seen.Store(revision)
	p.waiters = slices.DeleteFunc(p.waiters, func(w *waiter) bool {
		if w.target > revision {
			return false
		}
		close(w.done)
		return true
	})
}

// reset decreases seen to a revision, because the store has returned to it, and completes a requested rewind.
func (p *progress) reset(revision int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen.Store(revision)
	p.highest.Store(revision)
	p.rewinds.Add(1)
	if p.rewound != nil {
		close(p.rewound)
		p.rewound = nil
	}
}

// wait waits until seen has reached a revision. It fails when ctx ends, and with errTimeout when a value arrives on
// timeout.
func (p *progress) wait(ctx context.Context, timeout <-chan time.Time, target int64) error {
	if p.seen.Load() >= target {
		return nil
	}
	w := &waiter{target: target, done: make(chan struct{})}
	if !p.join(w) {
		return nil
	}
	select {
	case p.wanted <- struct{}{}:
	default:
	}
	select {
	case <-w.done:
		return nil
	case <-timeout:
		p.leave(w)
		return errTimeout
	case <-ctx.Done():
		p.leave(w)
		return ctx.Err()
	}
}

// join adds a waiter. It returns false if seen has reached the target in the meantime.
func (p *progress) join(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen.Load() >= w.target {
		return false
	}
	p.waiters = append(p.waiters, w)
	return true
}

// leave removes a waiter that gives up. It takes time proportional to the number of waiters.
func (p *progress) leave(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiters = slices.DeleteFunc(p.waiters, func(other *waiter) bool { return other == w })
}

// waiting reports whether a reader waits, so that progress must be requested.
func (p *progress) waiting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiters) > 0
}
