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
	firstRetry    = 10 * time.Millisecond
	lastRetry     = 2 * time.Second
	sweepInterval = 30 * time.Second
)

// Run keeps the caches up to date until ctx ends. It returns the error of ctx.
func (c *Caches) Run(ctx context.Context) error {
	var running sync.WaitGroup
	defer running.Wait()
	defer c.stop()
	running.Go(func() { c.requestProgress(ctx) })
	running.Go(func() { c.sweep(ctx) })
	var position int64
	for retry := firstRetry; ctx.Err() == nil; retry = min(2*retry, lastRetry) {
		reached, err := c.follow(ctx, position)
		if reached > position {
			retry = firstRetry
		}
		position = reached
		if ctx.Err() == nil {
			c.log.V(1).Info("The watch of the store ended; starting another", "revision", position, "reason", err.Error())
			c.sleep(ctx, retry)
		}
	}
	return ctx.Err()
}

// follow applies what happens after a position, 0 meaning none yet, and returns how far it came.
func (c *Caches) follow(ctx context.Context, position int64) (int64, error) {
	current, err := c.store.Revision(ctx)
	if err != nil {
		return position, err
	}
	if position == 0 || current < position || c.progress.rewindRequested() {
		c.jump(current)
		position = current
	}
	feed, err := c.store.Watch(ctx, position)
	if err != nil {
		return position, err
	}
	defer feed.Close()
	c.feed.Store(feed)
	defer c.feed.Store(nil)
	c.liveOnce.Do(func() { close(c.live) })
	for {
		batch, err := feed.Next(ctx)
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

// jump moves the feed's position although events between may have been lost: caches must be read anew. If the
// store has gone back in time, whatever its watchers know is void.
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
		c.log.Error(fmt.Errorf("revision %d after %d", to, seen), "The store went back in time; all watches start anew")
		c.progress.reset(to)
		c.compacted.Store(0)
	}
	c.progress.advance(to)
	for _, cache := range fetch { // not before the progress is right: readers take it for that of what is fetched
		go cache.fetch(c.ctx)
	}
}

// apply brings every cache a batch touches up to date, and then the progress.
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
		cache.apply(cache.incoming, now)
		clear(cache.incoming)
		cache.incoming = cache.incoming[:0]
	}
	c.progress.advance(batch.Revision)
}

// progressDelays are the times between requests for progress while somebody waits for a revision: mostly the
// event they wait for is on its way; if not, the revision was made by a write outside the store's prefix.
var progressDelays = []time.Duration{time.Millisecond, 10 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond}

// requestProgress asks the feed how far it is, while somebody waits.
func (c *Caches) requestProgress(ctx context.Context) {
	for {
		select {
		case <-c.progress.wanted:
		case <-ctx.Done():
			return
		}
		for i := 0; c.progress.waiting() && ctx.Err() == nil; i++ {
			c.sleep(ctx, progressDelays[min(i, len(progressDelays)-1)])
			feed := c.feed.Load()
			if feed == nil || !c.progress.waiting() || !c.store.SupportsProgress() {
				continue
			}
			if err := feed.RequestProgress(); err != nil {
				c.log.V(1).Info("Requesting progress failed", "reason", err.Error())
			}
		}
	}
}

// sweep drops what is too old where no event does it.
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
		c.checkTime(ctx)
	}
}
