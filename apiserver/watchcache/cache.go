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

// freshWait is the time that a reader waits for a future revision, as in kube-apiserver.
const freshWait = 3 * time.Second

// state of a cache.
type state int

const (
	idle    state = iota // not used yet; events are ignored
	loading              // the collection is being read; events are buffered
	ready                // events are applied
	dropped              // permanently unusable
)

// view is the published state: a tree that contains all events up to progress.seen, and the revision of its last
// change.
type view struct {
	tree    *tree  // immutable
	index   *index // immutable; nil: none
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
	current  atomic.Pointer[view] // Invariant: not nil exactly while state is ready.
	incoming []storage.Event      // of the batch being applied; used by the goroutine of Run only

	// extending and deriving are mutexes, of extend and derive, whose Lock can be cancelled by a context.
	extending, deriving chan struct{}

	// mu guards everything below, the contents of tree, and the mutable fields of watchers. See the package documentation
	// for the order of locks.
	mu    sync.RWMutex
	state state
	// epoch counts invalidations. A read of the collection that began in an earlier epoch must not be installed: events
	// between the read and the buffered ones may be lost.
	epoch    int
	settled  chan struct{}   // closed when ready or dropped, and replaced by an invalidation
	unready  time.Time       // since when the cache has not been ready
	failure  error           // of the last attempt to read the collection; nil while ready
	buffered []storage.Event // since begin, while loading
	tree     *tree           // nil before the first install
	index    *index          // nil: none. Invariant: it has the entries of tree.
	stored   int64           // bytes of all objects in tree
	changed  int64           // revision of the last change of tree; Invariant: changed >= read
	ring     ring
	watchers watchers
	beside   map[*StoredWatcher]struct{} // nil: none
	offers   offers
	retained []retained

	// read is the revision at which the collection was last read. Invariant: tree contains all events up to it, so that
	// applyEvent ignores those that the watch stream delivers afterwards.
	read int64
	// filled is ring.floor as of the last fill, lowered by extend. The ring can be extended only while ring.floor ==
	// filled: once the ring has dropped events, or reconcile has raised floor, earlier events would leave a gap.
	filled int64
	// forgotten is the greatest revision after which the store is known to lack events. It saves repeated attempts.
	forgotten int64
}

func newCache(caches *Caches, path string, extract Extract) *Cache {
	return &Cache{
		caches: caches, path: path, prefix: path + "/", extract: extract,
		labels:   labelSets{sets: map[string]*labelSet{}},
		settled:  make(chan struct{}),
		unready:  caches.clock.Now(),
		ring:     ring{maxBytes: caches.ring, first: firstSequence, end: firstSequence},
		watchers: newWatchers(),
		offers:   offers{},

		extending: make(chan struct{}, 1),
		deriving:  make(chan struct{}, 1),
	}
}

func (c *Cache) budget() *budget { return &c.caches.encoded }

// Prefix returns the path of the collection with a trailing slash, for Snapshot.Ascend.
func (c *Cache) Prefix() string { return c.prefix }

// Snapshot returns a state at a revision or later; 0 means any. It waits up to 3 s for a future revision, or for the
// collection to be read again, then fails with ErrTooNew.
func (c *Cache) Snapshot(ctx context.Context, atLeast int64) (*Snapshot, error) {
	if err := c.awaitReread(ctx); err != nil {
		return nil, err
	}
	if snapshot := c.now(); snapshot != nil && snapshot.revision >= atLeast {
		if atLeast > 0 {
			c.stats.waits.buckets[0].Add(1) // without reading the clock
		}
		return snapshot, nil
	}
	began := c.caches.clock.Now()
	defer func() { c.stats.waits.observe(c.caches.clock.Since(began)) }()
	timeout := c.caches.clock.NewTimer(freshWait)
	defer timeout.Stop()
	for {
		err := c.caches.progress.wait(ctx, timeout.C(), atLeast)
		if err == nil {
			err = c.awaitReady(ctx, timeout.C())
		}
		if errors.Is(err, errTimeout) {
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

// Latest returns a state that contains every write that finished before the call.
func (c *Cache) Latest(ctx context.Context) (*Snapshot, error) {
	snapshot, err := c.latest(ctx)
	switch {
	case err == nil:
		c.stats.consistentReads.Add(1)
	case errors.Is(err, ErrTooNew):
		c.stats.laggingReads.Add(1)
	default:
		c.stats.failedReads.Add(1)
	}
	return snapshot, err
}

func (c *Cache) latest(ctx context.Context) (*Snapshot, error) {
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

// latestWithoutProgress returns the current state if it has reached a revision, else ErrTooNew. Without progress
// requests, the cache cannot wait for the revision of a write to another collection.
func (c *Cache) latestWithoutProgress(ctx context.Context, revision int64) (*Snapshot, error) {
	if err := c.awaitReread(ctx); err != nil {
		return nil, err
	}
	if snapshot := c.now(); snapshot != nil && snapshot.revision >= revision {
		return snapshot, nil
	}
	return nil, fmt.Errorf("%w: %d, current: %d, and this version of etcd does not support progress requests",
		ErrTooNew, revision, c.caches.Revision())
}

// now returns the current state, nil while the cache is not ready. The progress must be loaded before the view: views
// are published before the progress advances, so that the view contains all events up to it.
func (c *Cache) now() *Snapshot {
	seen := c.caches.progress.seen.Load()
	v := c.current.Load()
	if v == nil {
		return nil
	}
	return &Snapshot{tree: v.tree, index: v.index, changed: v.changed, revision: max(seen, v.changed)}
}

// Loaded reports whether the cache is ready, so that Snapshot does not wait for the collection to be read.
func (c *Cache) Loaded() bool { return c.current.Load() != nil }

// Objects returns the number of stored objects, 0 while the collection has not been read.
func (c *Cache) Objects() int64 { return c.stats.objects.Load() }

func (c *Cache) isDropped() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.state == dropped
}

// MeanSize returns the mean size of the stored objects, in bytes.
func (c *Cache) MeanSize() int64 {
	return c.stats.stored.Load() / max(c.stats.objects.Load(), 1)
}

// errTimeout means that a reader has waited for freshWait.
var errTimeout = errors.New("timed out")

// awaitReady starts the cache if necessary and waits until it is ready, or until a value arrives on timeout, which may
// be nil.
func (c *Cache) awaitReady(ctx context.Context, timeout <-chan time.Time) error {
	c.start.Do(c.load)
	for c.current.Load() == nil {
		c.mu.RLock()
		settled, state := c.settled, c.state
		c.mu.RUnlock()
		if state == dropped {
			return ErrDropped
		}
		select {
		case <-settled:
		case <-timeout:
			return errTimeout
		case <-ctx.Done():
			return ctx.Err()
		case <-c.caches.ctx.Done():
			return fmt.Errorf("%w: the watch cache has stopped", storage.ErrUnavailable)
		}
	}
	return nil
}

// awaitReread is awaitReady that fails with ErrTooNew if the collection has been read before and is not read again soon:
// one of its objects may have become unreadable.
func (c *Cache) awaitReread(ctx context.Context) error {
	if c.current.Load() != nil {
		return nil
	}
	if c.stats.initializations.Load() == 0 {
		return c.awaitReady(ctx, nil)
	}
	timeout := c.caches.clock.NewTimer(freshWait)
	defer timeout.Stop()
	err := c.awaitReady(ctx, timeout.C())
	if errors.Is(err, errTimeout) {
		return fmt.Errorf("%w: the collection could not be read again: %s", ErrTooNew, c.path)
	}
	return err
}

// sweep drops what is too old, for caches without events.
func (c *Cache) sweep(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
	c.trim(now.UnixNano())
	c.ring.shrink()
	c.offers.forget(c.caches.Revision())
}

// extractLabels returns the labels of a stored object. One bad object must not make the collection unavailable.
func (c *Cache) extractLabels(path string, data []byte) map[string]string {
	if c.extract.Labels == nil {
		return nil
	}
	set, err := c.extract.Labels(data)
	if err != nil {
		c.caches.log.Error(err, "Could not read the labels of a stored object; treating it as unlabelled", "path", path)
	}
	return set
}
