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

// freshWait bounds the wait of a reader for a revision that the watch stream has not reached, like blockTimeout of
// kube-apiserver's watchCache.
const freshWait = 3 * time.Second

// state is the stage of a cache in its life; see the package documentation.
type state int

const (
	idle    state = iota // not used yet: the collection is not read, and events are ignored
	loading              // the collection is being read; its events are buffered
	ready                // the collection has been read; its events are applied
	dropped              // permanently unusable: reads and watches fail with ErrDropped
)

// view is the state that readers see: a tree that contains all events of the collection up to progress.seen, and the
// revision of the last change of the collection. changed may be greater than progress.seen, for instance while a
// batch is being applied.
type view struct {
	tree    *tree  // immutable
	index   *index // immutable; nil if the collection has no indexed field
	changed int64
}

// Cache is the cache of one collection, the counterpart of kube-apiserver's Cacher. All exported methods are safe for
// concurrent use.
type Cache struct {
	caches  *Caches
	path    string
	prefix  string // path with a trailing slash
	extract Extract
	labels  labelSets
	stats   stats

	start sync.Once
	// protection is the greatest storage.Protection of a value that the cache has received.
	protection atomic.Int32

	current atomic.Pointer[view] // Invariant: not nil exactly while state is ready.
	// incoming has the events of the collection in the batch that Caches.apply is distributing. Only the goroutine of
	// Run uses it.
	incoming []storage.Event

	// extending and deriving serialize the calls of extend and of derive. They are channels of capacity 1, used as
	// mutexes whose Lock can be cancelled by a context. Both are taken before mu.
	extending, deriving chan struct{}

	// mu guards all fields below, the contents of tree and index, encodings.holders of all entries and records, and
	// the mutable fields of watchers. See the package documentation for the order of locks.
	mu    sync.RWMutex
	state state
	// epoch counts the calls of invalidate, and of restartFetch while state is loading. A list of the collection that
	// began in an earlier epoch must not be installed: events between the list and the first buffered event may be
	// lost, or the list may have been decrypted with former keys.
	epoch    int
	settled  chan struct{}   // closed when state becomes ready or dropped; replaced when state becomes loading again
	unready  time.Time       // time at which the cache was created or last became loading
	failure  error           // error of the last attempt to list the collection; nil while ready
	buffered []storage.Event // events received since begin, while state is loading
	tree     *tree           // contents; nil before the first install and after forget
	index    *index          // nil if tree is nil or no field is indexed. Invariant: it has the same entries as tree.
	stored   int64           // sum of the sizes of the stored objects in tree, in bytes
	changed  int64           // revision of the last change of tree. Invariant: changed >= read
	ring     ring
	watchers watchers
	offers   offers
	retained []retained // in the order in which they were retained
	// storedWatchers has the open StoredWatchers of the collection, which drop ends; nil: none yet.
	storedWatchers map[*StoredWatcher]struct{}

	// read is the revision of the last installed list of the collection. Invariant: tree contains all events up to
	// it, so that applyEvent ignores events up to it that the watch stream delivers later.
	read int64
	// filled is the value that fill, or later extend, has given to ring.floor. The ring can be extended only while
	// ring.floor == filled: once the ring has dropped events, or reconcile has raised the floor, earlier events would
	// leave a gap.
	filled int64
	// forgotten is the greatest revision from which extend has failed permanently: the store has compacted events
	// after it, or has too many of them. extend does not try again from revisions up to forgotten.
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

// Snapshot returns the state of the collection at the revision atLeast or later; 0 accepts any state. It waits up to
// 3 seconds until the watch stream has reached the revision, and then fails with ErrTooNew. It waits without that
// limit until the collection has been read for the first time.
func (c *Cache) Snapshot(ctx context.Context, atLeast int64) (*Snapshot, error) {
	if err := c.awaitReread(ctx); err != nil {
		return nil, err
	}
	if snapshot := c.now(); snapshot != nil && snapshot.revision >= atLeast {
		if atLeast > 0 {
			c.stats.waits.observe(0, waitBuckets) // without reading the clock
		}
		return snapshot, nil
	}
	began := c.caches.clock.Now()
	defer func() { c.stats.waits.observe(c.caches.clock.Since(began), waitBuckets) }()
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

// Latest returns a state that contains every write that finished before the call: a consistent read. It fails with
// ErrTooNew if the cache lags; the caller can then read from the store.
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

// latest implements Latest. It starts the cache before it asks the store for its revision, so that the list of the
// collection and the request overlap.
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
// requests, the cache may never learn that it has reached the revision of a write to another collection, so that
// waiting is useless.
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

// now returns the current state, nil while the cache is not ready. It must load the progress before the view: views
// are published before the progress advances, so that the view contains all events up to the progress.
func (c *Cache) now() *Snapshot {
	seen := c.caches.progress.seen.Load()
	v := c.current.Load()
	if v == nil {
		return nil
	}
	return &Snapshot{tree: v.tree, index: v.index, changed: v.changed, revision: max(seen, v.changed)}
}

// Loaded reports whether the cache is ready, so that Snapshot does not wait for a list of the collection.
func (c *Cache) Loaded() bool { return c.current.Load() != nil }

// Objects returns the number of objects in the state last published; 0 if none has been.
func (c *Cache) Objects() int64 { return c.stats.objects.Load() }

func (c *Cache) isDropped() bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.state == dropped
}

// MeanSize returns the mean size of the stored objects in the state last published, in bytes.
func (c *Cache) MeanSize() int64 {
	return c.stats.stored.Load() / max(c.stats.objects.Load(), 1)
}

// errTimeout means that the timeout of a wait has expired.
var errTimeout = errors.New("timed out")

// awaitReady starts the cache if necessary and waits until it is ready. It fails with errTimeout when a value arrives
// on timeout, which may be nil, and with ErrDropped if the cache is dropped.
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

// awaitReread waits like awaitReady. If the collection has been read before, it waits for freshWait at most, and then
// fails with ErrTooNew: an object of the collection may have become unreadable, so that reading it again fails.
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

// sweep drops retained snapshots, events and offers that are too old. Caches does so periodically, because
// collections may have no events that would cause it.
func (c *Cache) sweep(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.expire(now)
	c.trim(now.UnixNano())
	c.ring.shrink()
	c.offers.forget(c.caches.Revision())
}

// extractLabels returns the labels of a stored object. An object whose labels cannot be read is logged and treated as
// unlabelled: one bad object must not make the collection unavailable.
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
