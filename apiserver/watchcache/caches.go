// Package watchcache keeps collections of a store in memory as encoded objects, up to date through one watch
// of the store, for readers who take no lock and for any number of watchers who cost nothing while nothing
// happens to what they watch.
//
// A collection is cached from its first use on. What clients get is made once per object and format, shared by
// all of them, and dropped when memory for it runs out. Readers see immutable snapshots; watchers are cursors
// into one ring of events per collection.
package watchcache

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/storage"
)

var (
	// ErrExpired says that events a watcher needs are no longer kept.
	ErrExpired = errors.New("too old resource version")
	// ErrTooNew says that the store did not come to the revision in time.
	ErrTooNew = errors.New("too large resource version")
	// ErrDropped says that the collection is not cached any more.
	ErrDropped = errors.New("the cache has been dropped")
)

const (
	defaultEncodingBudget = 64 << 20
	defaultRingBytes      = 32 << 20
	// loadsAtOnce bounds the collections that are read from the store at the same time.
	loadsAtOnce = 8
)

// Options are what a set of caches needs besides its store. Zero values have defaults.
type Options struct {
	Clock          clock.WithTicker
	Logger         logr.Logger
	Registerer     prometheus.Registerer // nil: no metrics
	EncodingBudget int64                 // bytes of encodings of all caches together; default 64 MiB
	RingBytes      int64                 // bytes of events kept per collection; default 32 MiB
}

// Extract tells what the cache must know of an object, from its stored bytes.
type Extract struct {
	Resource schema.GroupResource // for metrics
	Labels   func(stored []byte) (map[string]string, error)
	Fields   func(stored []byte) (fields.Set, error)
}

// Caches are the cached collections of one store.
type Caches struct {
	store    *storage.Store
	clock    clock.WithTicker
	log      logr.Logger
	encoded  budget
	ring     int64 // bytes per ring
	progress progress
	// compacted is the revision before which the store has forgotten all states; 0: not known to have forgotten any.
	compacted atomic.Int64
	loads     chan struct{} // a semaphore

	live     chan struct{} // closed when the feed has a position: what happens after it will arrive
	liveOnce sync.Once
	ctx      context.Context // ends with Run; what outlives a caller's request uses it
	stop     context.CancelFunc

	mu     sync.Mutex // serializes changes of byPath
	byPath atomic.Pointer[map[string]*Cache]
	feed   atomic.Pointer[storage.WatchStream]
}

// New returns caches without contents. Run brings them to life.
func New(store *storage.Store, options Options) *Caches {
	c := &Caches{store: store, clock: options.Clock, log: options.Logger, ring: options.RingBytes}
	if c.clock == nil {
		c.clock = clock.RealClock{}
	}
	if c.ring == 0 {
		c.ring = defaultRingBytes
	}
	c.encoded.limit = options.EncodingBudget
	if c.encoded.limit == 0 {
		c.encoded.limit = defaultEncodingBudget
	}
	c.progress.wanted = make(chan struct{}, 1)
	c.loads = make(chan struct{}, loadsAtOnce)
	c.live = make(chan struct{})
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.byPath.Store(&map[string]*Cache{})
	if options.Registerer != nil {
		options.Registerer.MustRegister(newCollector(c))
	}
	return c
}

// For returns the cache of the collection under a path without slashes at its ends. It is filled on first use.
// The same path always has the same cache until it is dropped.
//
// describe is called when a cache must be made. It tells what the cache must know and whether the collection is to be
// cached at all; if not, the cache returned has been dropped from the beginning. Drop does not come in between: one
// who changes the description and then drops the cache can rely on that nobody makes it after the old description.
func (c *Caches) For(path string, describe func() (Extract, bool)) *Cache {
	if known := (*c.byPath.Load())[path]; known != nil {
		return known
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if known := (*c.byPath.Load())[path]; known != nil {
		return known
	}
	extract, cached := describe()
	added := newCache(c, path, extract)
	if !cached {
		added.drop()
		return added
	}
	next := maps.Clone(*c.byPath.Load())
	next[path] = added
	c.byPath.Store(&next)
	return added
}

// Drop forgets the cache of a collection; its watchers end.
func (c *Caches) Drop(path string) {
	c.mu.Lock()
	next := maps.Clone(*c.byPath.Load())
	dropped := next[path]
	delete(next, path)
	c.byPath.Store(&next)
	c.mu.Unlock()
	if dropped != nil {
		dropped.drop()
	}
}

// Revision is how far all caches are up to date.
func (c *Caches) Revision() int64 { return c.progress.seen.Load() }

// Compacted says that the store has been compacted to a revision: states before it are not given out any more, so that
// clients find the same whichever server they ask.
func (c *Caches) Compacted(revision int64) {
	for known := c.compacted.Load(); revision > known; known = c.compacted.Load() {
		if c.compacted.CompareAndSwap(known, revision) {
			return
		}
	}
}

// ResourceOf names the resource that a path belongs to: what its cache was made for, else the first part of the path.
func (c *Caches) ResourceOf(path string) schema.GroupResource {
	if cache := cacheOf(*c.byPath.Load(), path); cache != nil && cache.extract.Resource.Resource != "" {
		return cache.extract.Resource
	}
	first, _, _ := strings.Cut(path, "/")
	return schema.GroupResource{Resource: first}
}

// cacheOf finds the cache that a path belongs to, nil if its collection is not cached. The path of a collection
// has one part ("pods") or two ("services/specs").
func cacheOf(byPath map[string]*Cache, path string) *Cache {
	for end := 0; ; end++ {
		slash := strings.IndexByte(path[end:], '/')
		if slash < 0 {
			return nil
		}
		end += slash
		if found := byPath[path[:end]]; found != nil {
			return found
		}
	}
}

func (c *Caches) sleep(ctx context.Context, duration time.Duration) {
	timer := c.clock.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}
