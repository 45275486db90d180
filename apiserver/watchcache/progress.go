package watchcache

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
)

// progress is how far the feed has come, for all caches together. Caches publish the state that contains an
// event before progress reaches the event's revision.
type progress struct {
	seen   atomic.Int64
	wanted chan struct{} // capacity 1: somebody began to wait

	mu      sync.Mutex
	waiters []*waiter
	rewound chan struct{} // closed with the next rewind; nil: none is requested

	highest atomic.Int64 // that the store is known to have reached since the last rewind; perhaps less than seen
	rewinds atomic.Int64 // how often the caches began anew because the store went back in time
}

type waiter struct {
	target int64
	done   chan struct{}
}

// advance releases everybody who waits for a revision up to this one.
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

// reset goes back to an earlier revision: the store has been restored from a backup.
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

// wait returns when the feed has come to a revision, or with the error of ctx.
func (p *progress) wait(ctx context.Context, target int64) error {
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
	case <-ctx.Done():
		p.leave(w)
		return ctx.Err()
	}
}

func (p *progress) join(w *waiter) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.seen.Load() >= w.target {
		return false
	}
	p.waiters = append(p.waiters, w)
	return true
}

func (p *progress) leave(w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiters = slices.DeleteFunc(p.waiters, func(other *waiter) bool { return other == w })
}

func (p *progress) waiting() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.waiters) > 0
}
