package watchcache

import (
	"context"
	"fmt"
	"time"

	"quorate.dev/apiserver/storage"
)

// Current returns a revision of the store that is not less than the revision of any write that finished before the
// call. If the store returns an earlier revision than before, a backup was restored while this server was running:
// Current then waits until all caches have dropped their contents, up to freshWait.
//
// A restored store whose revision has already passed the former one cannot be detected. 'etcdutl snapshot restore'
// with --bump-revision and --mark-compacted avoids that case: the watch stream then fails because its revision is
// compacted, and all collections are read again.
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

// rewind makes the caches start over and waits until they have. It does nothing if they have done so since the caller
// read the number of rewinds.
func (c *Caches) rewind(ctx context.Context, rewinds int64) error {
	rewound := c.progress.requestRewind(rewinds)
	if rewound == nil {
		return nil
	}
	if stream := c.stream.Load(); stream != nil {
		stream.Close() // etcd's client would resume the watch after a revision that is in the future now
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

// checkRewind detects that the store has returned to an earlier revision while no reader calls Current.
func (c *Caches) checkRewind(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if _, err := c.Current(ctx); err != nil && ctx.Err() == nil {
		c.log.V(1).Info("Could not read the current revision of the store", "reason", err.Error())
	}
}

// position returns the number of rewinds, and the greatest revision known since the last rewind.
func (p *progress) position() (rewinds, highest int64) {
	rewinds = p.rewinds.Load() // loaded first, because reset changes it last: highest is never older than rewinds
	return rewinds, max(p.highest.Load(), p.seen.Load())
}

// answered records a revision that the store has returned. It ignores the revision if the number of rewinds has
// changed since the request.
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

// requestRewind requests a rewind and returns a channel that is closed when it has happened. It returns nil if the
// number of rewinds differs from the given one: the rewind has happened already.
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

// rewindRequested reports whether a rewind has been requested and has not happened.
func (p *progress) rewindRequested() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rewound != nil
}
