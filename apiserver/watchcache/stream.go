package watchcache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"quorate.dev/apiserver/storage"
)

const (
	// minBackoff and maxBackoff bound the delays between two attempts to watch the store, or to list one collection. The
	// delays double with each failure.
	minBackoff = 10 * time.Millisecond
	maxBackoff = 2 * time.Second
	// sweepInterval is the interval at which collections without events drop outdated events, snapshots and offers.
	sweepInterval = 30 * time.Second
)

// Run keeps the caches up to date until ctx ends, and returns the error of ctx. It must be called once. Its own
// goroutine follows the watch stream; four others request progress, sweep, check consistency and verify decryption.
func (c *Caches) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	defer c.stop()
	running.Go(func() { c.requestProgress(ctx) })
	running.Go(func() { c.sweep(ctx) })
	running.Go(func() { c.checkConsistency(ctx) })
	running.Go(func() { c.verifyDecryption(ctx) })
	var position int64
	for backoff := minBackoff; ctx.Err() == nil; backoff = min(2*backoff, maxBackoff) {
		reached, err := c.follow(ctx, position)
		if reached > position {
			backoff = minBackoff
		}
		position = reached
		if ctx.Err() == nil {
			c.log.V(1).Info("The watch of the store ended; restarting it", "revision", position, "reason", err.Error())
			c.sleep(ctx, backoff)
		}
	}
	return ctx.Err()
}

// follow watches the store after a revision and applies its events until an error occurs. It returns the revision
// reached, or 0 if the events after that are lost. With position 0, or after the store has returned to an earlier
// revision, it starts at the current revision.
func (c *Caches) follow(ctx context.Context, position int64) (int64, error) {
	current, err := c.store.Revision(ctx)
	if err != nil {
		return position, err
	}
	if position == 0 || current < position || c.progress.rewindRequested() {
		c.jump(current)
		position = current
	}
	stream, err := c.store.Watch(ctx, position)
	if err != nil {
		return position, err
	}
	defer stream.Close()
	c.stream.Store(stream)
	defer c.stream.Store(nil)
	c.liveOnce.Do(func() { close(c.live) })
	for {
		batch, err := stream.Next(ctx)
		if errors.Is(err, storage.ErrCompacted) {
			return 0, err
		}
		if err != nil {
			return position, err
		}
		c.apply(batch)
		position = batch.Revision
	}
}

// jump makes the caches continue at a revision although events before it may be lost: collections are listed again.
// If the store returned to an earlier revision, jump also drops the contents of all caches and expires all watchers,
// because the revisions that they have seen belong to other states now.
func (c *Caches) jump(to int64) {
	seen := c.progress.seen.Load()
	back := to < seen || c.progress.rewindRequested()
	var fetch []*Cache
	for _, cache := range *c.byPath.Load() {
		if cache.invalidate(back) {
			fetch = append(fetch, cache)
		}
	}
	if back {
		err := fmt.Errorf("revision %d after %d", to, seen)
		c.log.Error(err, "The store returned to an earlier revision; restarting all watches")
		c.progress.reset(to)
		c.compacted.Store(0)
	}
	c.progress.advance(to)
	// Only after advance: readers take the progress for a revision that the listed state has reached.
	for _, cache := range fetch {
		go cache.fetch(c.ctx)
	}
}

// apply dispatches the events of a batch to the caches of their collections, then advances the progress. Readers rely
// on this order. Events of collections without a cache are ignored. Only the goroutine of Run calls it.
func (c *Caches) apply(batch storage.Batch) {
	byPath := *c.byPath.Load()
	var touched []*Cache
	for _, event := range batch.Events {
		cache := cacheOf(byPath, event.Path)
		if cache == nil {
			continue
		}
		if len(cache.incoming) == 0 {
			touched = append(touched, cache)
		}
		cache.incoming = append(cache.incoming, event)
	}
	now := c.clock.Now().UnixNano()
	for _, cache := range touched {
		cache.protect(c.store.Protection(cache.incoming))
		if events, err := c.decrypt(cache.incoming); err != nil {
			c.reread(cache, err)
		} else {
			cache.apply(events, now)
		}
		clear(cache.incoming)
		cache.incoming = cache.incoming[:0]
	}
	c.progress.advance(batch.Revision)
}

// progressDelays has the delays before each progress request while a reader waits; the last one repeats. Usually the
// event arrives within the first. Otherwise the awaited revision belongs to a write outside the store's prefix, which
// causes no event.
var progressDelays = []time.Duration{
	time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
}

// requestProgress requests progress notifications from etcd while a reader waits, until ctx ends. kube-apiserver's
// ConditionalProgressRequester does the same.
func (c *Caches) requestProgress(ctx context.Context) {
	for {
		select {
		case <-c.progress.wanted:
		case <-ctx.Done():
			return
		}
		for i := 0; c.progress.waiting() && ctx.Err() == nil; i++ {
			c.sleep(ctx, progressDelays[min(i, len(progressDelays)-1)])
			stream := c.stream.Load()
			if stream == nil || !c.progress.waiting() || !c.store.SupportsProgress() {
				continue
			}
			if err := stream.RequestProgress(); err != nil {
				c.log.V(1).Info("Progress request failed", "reason", err.Error())
			}
		}
	}
}

// sweep calls Cache.sweep of all caches every sweepInterval until ctx ends. It also detects that the store has
// returned to an earlier revision.
func (c *Caches) sweep(ctx context.Context) {
	ticker := c.clock.NewTicker(sweepInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C():
		case <-ctx.Done():
			return
		}
		now := c.clock.Now()
		for _, cache := range *c.byPath.Load() {
			cache.sweep(now)
		}
		c.checkRewind(ctx)
	}
}
