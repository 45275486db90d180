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
	minBackoff    = 10 * time.Millisecond
	maxBackoff    = 2 * time.Second
	sweepInterval = 30 * time.Second
)

// Run keeps the caches up to date until ctx ends. It returns the error of ctx.
func (c *Caches) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	defer c.stop()
	running.Go(func() { c.requestProgress(ctx) })
	running.Go(func() { c.sweep(ctx) })
	running.Go(func() { c.checkConsistency(ctx) })
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

// follow watches the store after a revision and applies its events until an error. It returns the revision reached, 0
// if the events after it are lost. Position 0 starts at the current revision.
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

// jump continues at a revision although events before it may be lost, so that collections must be read again. If the
// store went back to an earlier revision, it expires all watchers too: their revisions mean nothing any more.
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
	for _, cache := range fetch { // after advance: readers take the progress for the revision of what is fetched
		go cache.fetch(c.ctx)
	}
}

// apply dispatches the events of a batch to their caches, then advances the progress. Readers rely on this order.
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

// progressDelays are the delays before the progress requests of a waiting reader. Usually the event arrives during the
// first. If not, the revision is that of a write outside the store's prefix, which causes no event.
var progressDelays = []time.Duration{
	time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond,
}

// requestProgress sends progress requests while a reader waits.
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

// sweep periodically drops what is too old in caches without events.
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
