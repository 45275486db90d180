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
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

var (
	// ErrExpired means that events or states at a revision are no longer available.
	ErrExpired = errors.New("too old resource version")
	// ErrTooNew means that the store did not reach a revision in time.
	ErrTooNew = errors.New("too large resource version")
	// ErrDropped means that the collection is no longer cached.
	ErrDropped = errors.New("the cache has been dropped")
)

const (
	defaultEncodingBudget = 64 << 20
	defaultRingBytes      = 32 << 20
	// maxLoads bounds the number of collections that are read from the store concurrently.
	maxLoads = 8
)

// Options configure Caches. All fields are optional.
type Options struct {
	Clock          clock.WithTicker
	Logger         logr.Logger
	EncodingBudget int64 // bytes of encodings in all caches together; default 64 MiB
	RingBytes      int64 // bytes of events kept per collection; default 32 MiB
	// Checks is the minimum time between two comparisons of the caches with the store; 0: no comparisons.
	Checks time.Duration
}

// Extract reads from stored bytes what the cache indexes.
type Extract struct {
	Resource schema.GroupResource // label of metrics
	Labels   func(stored []byte) (map[string]string, error)
	Fields   func(stored []byte) (fields.Set, error)
	Index    *resource.Index // nil: none
	// Remote is set if a conversion webhook may convert stored objects. Labels and Fields are those of the stored object,
	// Converted returns those of an object that a webhook has converted.
	Remote    bool
	Converted func(m resource.Match, object runtime.Object) (labels.Set, fields.Set, error)
}

// Caches are the cached collections of one store.
type Caches struct {
	store    *storage.Store
	clock    clock.WithTicker
	log      logr.Logger
	encoded  budget // of the encodings of all caches
	ring     int64  // bytes per ring
	checks   time.Duration
	progress progress
	// compacted is the revision before which the store has no states; 0: none is known.
	compacted atomic.Int64
	loads     chan struct{} // semaphore of maxLoads
	calls     calls

	// live is closed when the first watch stream is established. Invariant: collections are read only afterwards, so that
	// no event between the read and the stream is lost.
	live     chan struct{}
	liveOnce sync.Once
	ctx      context.Context // ends with Run; for reads that outlive the request that caused them
	stop     context.CancelFunc

	mu     sync.Mutex                          // serializes changes of byPath
	byPath atomic.Pointer[map[string]*Cache]   // replaced, never changed
	stream atomic.Pointer[storage.WatchStream] // nil while there is none
}

// New returns caches, which are not usable until Run is called.
func New(store *storage.Store, options Options) *Caches {
	c := &Caches{store: store, clock: options.Clock, log: options.Logger, ring: options.RingBytes, checks: options.Checks}
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
	c.loads = make(chan struct{}, maxLoads)
	c.live = make(chan struct{})
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.byPath.Store(&map[string]*Cache{})
	return c
}

// For returns the cache of the collection under a path without leading or trailing slashes. A path has the same cache
// until Drop. The collection is read on the first use of its cache.
//
// describe is called when there is no cache yet. It returns false if the collection must not be cached; the cache
// returned is then dropped. After a description changes and Drop returns, no cache can be built from the old one.
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

// Drop removes the cache of a collection. Its watchers and readers fail with ErrDropped.
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

// Revision returns the revision that all caches have reached.
func (c *Caches) Revision() int64 { return c.progress.seen.Load() }

// Compacted must be called when the store has been compacted to a revision. Earlier states then expire, even if they
// are in memory, so that clients get the same response from all replicas.
func (c *Caches) Compacted(revision int64) {
	for known := c.compacted.Load(); revision > known; known = c.compacted.Load() {
		if c.compacted.CompareAndSwap(known, revision) {
			return
		}
	}
}

// ResourceOf returns the resource of a path: that of its cache, or the first part of the path.
func (c *Caches) ResourceOf(path string) schema.GroupResource {
	if cache := cacheOf(*c.byPath.Load(), path); cache != nil && cache.extract.Resource.Resource != "" {
		return cache.extract.Resource
	}
	first, _, _ := strings.Cut(path, "/")
	return schema.GroupResource{Resource: first}
}

// cacheOf returns the cache of a path, nil if its collection is not cached. Paths of collections have one part ("pods")
// or two ("services/specs").
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

// sleep waits for a duration, or until ctx ends.
func (c *Caches) sleep(ctx context.Context, duration time.Duration) {
	timer := c.clock.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}
