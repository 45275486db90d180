package watchcache

import (
	"context"
	"fmt"
	"time"

	"quorate.dev/apiserver/storage"
)

// Current returns the current revision of the store: that of every write that had finished when it was called, or a
// later one. A store that answers with an earlier revision than one seen before has gone back in time: a backup was
// restored under the running server. Then Current returns once no cache holds anything of before, so that what follows
// is of the store as it is now.
//
// A restored store that has come further than it was before cannot be distinguished from one that was not restored;
// 'etcdutl snapshot restore --bump-revision' avoids that.
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

// rewind has the caches begin anew with the store as it is, and waits until they have, unless they have done so since
// an earlier count of rewinds.
func (c *Caches) rewind(ctx context.Context, rewinds int64) error {
	rewound := c.progress.requestRewind(rewinds)
	if rewound == nil {
		return nil
	}
	if feed := c.feed.Load(); feed != nil {
		feed.Close() // etcd's client resumes its watches after the revision that they had reached, and waits for the next
	}
	timer := c.clock.NewTimer(freshWait)
	defer timer.Stop()
	select {
	case <-rewound:
		return nil
	case <-timer.C():
		return fmt.Errorf("%w: it went back in time, and cannot be followed from there yet", storage.ErrUnavailable)
	case <-ctx.Done():
		return ctx.Err()
	}
}

// checkTime notices a store that went back in time where no reader does.
func (c *Caches) checkTime(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := c.Current(ctx); err != nil && ctx.Err() == nil {
		c.log.V(1).Info("The current revision is unknown", "reason", err.Error())
	}
}

// position returns how often the caches have begun anew, and the highest revision known to have been reached since.
func (p *progress) position() (rewinds, highest int64) {
	rewinds = p.rewinds.Load() // before the others: reset changes them first
	return rewinds, max(p.highest.Load(), p.seen.Load())
}

// answered notes a revision that the store returned when there had been so many rewinds.
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

// requestRewind returns what is closed once the caches have begun anew, nil if they have done so since the count given.
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

// rewindRequested reports whether a reader waits for the caches to begin anew.
func (p *progress) rewindRequested() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rewound != nil
}
