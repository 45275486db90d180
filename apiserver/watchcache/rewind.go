package watchcache

import (
	"context"
	"fmt"
	"time"

	"quorate.dev/apiserver/storage"
)

// Current returns a revision of the store that is not less than that of any write that finished before the call. If the
// store returns an earlier revision than before, a backup was restored under the running server: Current then waits
// until all caches have dropped what they held.
//
// A restored store whose revision has passed the former one cannot be detected. 'etcdutl snapshot restore
// --bump-revision' avoids that.
func (c *Caches) Current(ctx context.Context) (int64, error) {
	rewinds, highest := c.progress.position()
	revision, err := c.store.Revision(ctx)
	if err != nil {
		return 0, err
	}
	if revision < highest {
		return revision, c.rewind(ctx, rewinds)
	}
	c.progress.answered(rewinds, revision)
	return revision, nil
}

// rewind makes the caches start over and waits until they have, unless they did so since the given count of rewinds.
func (c *Caches) rewind(ctx context.Context, rewinds int64) error {
	rewound := c.progress.requestRewind(rewinds)
	if rewound == nil {
		return nil
	}
	if stream := c.stream.Load(); stream != nil {
		stream.Close() // etcd's client would resume it after a revision that is in the future now
	}
	timer := c.clock.NewTimer(freshWait)
	defer timer.Stop()
	select {
	case <-rewound:
		return nil
	case <-timer.C():
		return fmt.Errorf("%w: it returned to an earlier revision and cannot be watched yet", storage.ErrUnavailable)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// checkRewind detects a store that went back to an earlier revision while there are no readers.
func (c *Caches) checkRewind(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := c.Current(ctx); err != nil && ctx.Err() == nil {
		c.log.V(1).Info("Could not read the current revision of the store", "reason", err.Error())
	}
}

// position returns the count of rewinds, and the greatest revision known since the last.
func (p *progress) position() (rewinds, highest int64) {
	rewinds = p.rewinds.Load() // first, because reset changes it last
	return rewinds, max(p.highest.Load(), p.seen.Load())
}

// answered records a revision that the store returned, unless there was a rewind since the given count.
func (p *progress) answered(rewinds, revision int64) {
	if revision <= p.highest.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rewinds.Load() == rewinds {
		p.highest.Store(max(p.highest.Load(), revision))
	}
}

// requestRewind returns a channel that the next rewind closes, nil if there was one since the given count.
func (p *progress) requestRewind(rewinds int64) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rewinds.Load() != rewinds {
		return nil
	}
	if p.rewound == nil {
		p.rewound = make(chan struct{})
	}
	return p.rewound
}

// rewindRequested reports whether a reader waits for a rewind.
func (p *progress) rewindRequested() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rewound != nil
}
