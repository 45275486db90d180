package watchcache

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"quorate.dev/apiserver/storage"
)

// freshWait is how long a reader waits for a revision that has not been reached.
const freshWait = 3 * time.Second

// state of a cache. While it is not ready, events are buffered until the collection has been read.
type state int

const (
	idle state = iota
	loading
	ready
	dropped
)

// view is what readers see: a tree that is complete as of the revision of its last change, and later until
// it is replaced.
type view struct {
	tree    *tree
	changed int64
}

// Cache is one cached collection.
type Cache struct {
	caches  *Caches
	path    string
	prefix  string // path and a slash
	extract Extract
	labels  labelSets
	stats   stats

	start    sync.Once
	current  atomic.Pointer[view] // nil while not ready
	incoming []storage.Event      // of the batch being applied; the feed's own

	extending chan struct{} // a lock that can be waited for with a context
	deriving  chan struct{} // the same, of Exact

	mu       sync.RWMutex // everything below, and the contents of tree
	state    state
	epoch    int           // counts invalidations
	settled  chan struct{} // closed when ready or dropped; another one after an invalidation
	buffered []storage.Event
	tree     *tree
	stored   int64 // bytes of all objects in tree
	changed  int64
	ring     ring
	watchers watchers
	offers   offers
	retained []retained

	read      int64 // revision at which the collection was read; the events up to it are contained
	filled    int64 // the ring's floor when the collection was read, or moved back by earlier events
	forgotten int64 // the store does not have the events after this revision any more
}

func newCache(caches *Caches, path string, extract Extract) *Cache {
	return &Cache{
		caches: caches, path: path, prefix: path + "/", extract: extract,
		labels:   labelSets{sets: map[string]*labelSet{}},
		settled:  make(chan struct{}),
		ring:     ring{maxBytes: caches.ring, first: firstSequence, end: firstSequence},
		watchers: newWatchers(),
		offers:   offers{},

		extending: make(chan struct{}, 1),
		deriving:  make(chan struct{}, 1),
	}
}

func (c *Cache) budget() *budget { return &c.caches.encoded }

// Prefix is the path of the collection with a slash at its end, for Snapshot.Ascend.
func (c *Cache) Prefix() string { return c.prefix }

// Snapshot returns a state at least as new as a revision; 0 is any. It waits for a revision that has not been
// reached, at most 3 s, then fails with ErrTooNew.
func (c *Cache) Snapshot(ctx context.Context, atLeast int64) (*Snapshot, error) {
	if err := c.awaitReady(ctx); err != nil {
		return nil, err
	}
	if snapshot := c.now(); snapshot != nil && snapshot.revision >= atLeast {
		return snapshot, nil
	}
	began := c.caches.clock.Now()
	defer func() { c.stats.waited(c.caches.clock.Since(began)) }()
	limited, cancel := context.WithTimeoutCause(ctx, freshWait, ErrTooNew)
	defer cancel()
	for {
		err := c.caches.progress.wait(limited, atLeast)
		if err == nil {
			err = c.awaitReady(limited)
		}
		if err != nil && errors.Is(context.Cause(limited), ErrTooNew) {
			return nil, fmt.Errorf("%w: %d, current: %d", ErrTooNew, atLeast, c.caches.Revision())
		}
		if err != nil {
			return nil, err
		}
		if snapshot := c.now(); snapshot != nil && snapshot.revision >= atLeast {
			return snapshot, nil
		}
	}
}

// Latest returns a state that contains every write that had finished when it was called.
func (c *Cache) Latest(ctx context.Context) (*Snapshot, error) {
	c.start.Do(c.load)
	revision, err := c.caches.Current(ctx)
	if err != nil {
		return nil, err
	}
	if !c.caches.store.SupportsProgress() {
		return c.latestWithoutProgress(ctx, revision)
	}
	return c.Snapshot(ctx, revision)
}

// latestWithoutProgress returns the present state if it is as new as a revision, else ErrTooNew: without progress
// requests nothing says when the cache has come as far as a write to another collection.
func (c *Cache) latestWithoutProgress(ctx context.Context, revision int64) (*Snapshot, error) {
	if err := c.awaitReady(ctx); err != nil {
		return nil, err
	}
	if snapshot := c.now(); snapshot != nil && snapshot.revision >= revision {
		return snapshot, nil
	}
	return nil, fmt.Errorf("%w: %d, current: %d, and etcd is too old to ask for progress", ErrTooNew, revision,
		c.caches.Revision())
}

// now returns the present state, nil while there is none. The order of the two loads matters: the view is at
// least as new as the progress that was read before.
func (c *Cache) now() *Snapshot {
	seen := c.caches.progress.seen.Load()
	v := c.current.Load()
	if v == nil {
		return nil
	}
	return &Snapshot{tree: v.tree, changed: v.changed, revision: max(seen, v.changed)}
}

// Loaded reports whether the collection has been read, so that Snapshot answers at once.
func (c *Cache) Loaded() bool { return c.current.Load() != nil }

// MeanSize is how many stored bytes an object has on average.
func (c *Cache) MeanSize() int64 {
	return c.stats.stored.Load() / max(c.stats.objects.Load(), 1)
}

func (c *Cache) awaitReady(ctx context.Context) error {
	c.start.Do(c.load)
	for c.current.Load() == nil {
		c.mu.RLock()
		settled, now := c.settled, c.state
		c.mu.RUnlock()
		if now == dropped {
			return ErrDropped
		}
		select {
		case <-settled:
		case <-ctx.Done():
			return ctx.Err()
		case <-c.caches.ctx.Done():
			return fmt.Errorf("%w: the watch cache has stopped", storage.ErrUnavailable)
		}
	}
	return nil
}

func (c *Cache) sweep(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
	c.trim(now.UnixNano())
	c.ring.shrink()
	c.offers.forget(c.caches.Revision())
}

func (c *Cache) extractLabels(path string, data []byte) map[string]string {
	if c.extract.Labels == nil {
		return nil
	}
	set, err := c.extract.Labels(data)
	if err != nil {
		c.caches.log.Error(err, "The labels of a stored object cannot be read; it is taken to have none", "path", path)
	}
	return set
}
