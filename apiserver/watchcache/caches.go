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
	// ErrExpired means that the events after a revision, or the state at a revision, are no longer available.
	ErrExpired = errors.New("too old resource version")
	// ErrTooNew means that the cache did not reach a revision in time.
	ErrTooNew = errors.New("too large resource version")
	// ErrDropped means that the cache was dropped, because its collection must not be cached or its resource has
	// changed.
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
	EncodingBudget int64 // maximum size of the encodings of all caches together, in bytes; default 64 MiB
	RingBytes      int64 // maximum size of the events kept per collection, in bytes; default 32 MiB
	// Checks is the minimum time between two comparisons of the caches with the store; 0: no comparisons.
	Checks time.Duration
}

// Extract describes the resource of a collection: the functions read the labels and selectable fields of an object,
// which selectors of clients are matched with, from its stored bytes. Labels and Fields may be nil.
type Extract struct {
	Resource schema.GroupResource // value of the metrics' labels group and resource
	Labels   func(stored []byte) (map[string]string, error)
	Fields   func(stored []byte) (fields.Set, error)
	Index    *resource.Index // selectable field by which the cache is also sorted; nil: none
	// Remote is set if a conversion webhook may convert stored objects. Labels and Fields then return the labels and
	// fields of an object in its stored version, and Converted returns the labels and fields after a webhook has
	// converted the object.
	Remote    bool
	Converted func(m resource.Match, object runtime.Object) (labels.Set, fields.Set, error)
}

// Caches are the caches of all collections of one store. All methods are safe for concurrent use.
type Caches struct {
	store    *storage.Store
	clock    clock.WithTicker
	log      logr.Logger
	encoded  budget // encodings of all caches
	ring     int64  // maximum size of each ring, in bytes
	checks   time.Duration
	progress progress
	// compacted is the revision to which the store has been compacted: states at earlier revisions are not served. 0:
	// unknown.
	compacted atomic.Int64
	loads     chan struct{} // semaphore of capacity maxLoads, held while a collection is listed
	calls     calls
	// verifications has capacity 1. It has a value from a call of VerifyDecryption until Run begins to verify the
	// caches.
	verifications chan struct{}

	// live is closed when the first watch stream has been opened. Invariant: collections are listed only afterwards, so
	// that the stream delivers all events after the revision of the list.
	live     chan struct{}
	liveOnce sync.Once
	ctx      context.Context // ends with Run; used for reads of the store that outlive the request that caused them
	stop     context.CancelFunc

	mu     sync.Mutex                          // serializes replacements of byPath
	byPath atomic.Pointer[map[string]*Cache]   // caches by path of the collection. The map is replaced, never changed.
	stream atomic.Pointer[storage.WatchStream] // current watch stream, for progress requests; nil: none
}

// New returns Caches of a store. Reads from them wait until Run is called.
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
	c.verifications = make(chan struct{}, 1)
	c.ctx, c.stop = context.WithCancel(context.Background())
	c.byPath.Store(&map[string]*Cache{})
	return c
}

// For returns the cache of the collection under a path, which has no leading or trailing slash. Until Drop, it always
// returns the same cache. The collection is listed when its cache is first used.
//
// For calls describe if there is no cache yet. If describe returns false, the collection must not be cached, and For
// returns a cache that is already dropped. describe is called under the lock that Drop takes: when a definition has
// changed and Drop returns, no cache can be created from the former description.
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

// Drop removes the cache of a collection, if there is one. Its watchers and readers fail with ErrDropped. The next call
// of For creates a new cache, which lists the collection again.
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

// Revision returns the revision that the watch stream has reached. All caches that are ready contain the events up to
// it.
func (c *Caches) Revision() int64 { return c.progress.seen.Load() }

// Compacted must be called when the store has been compacted to a revision. States at earlier revisions then expire
// even if they are in memory, so that clients get the same response from all replicas.
func (c *Caches) Compacted(revision int64) {
	for known := c.compacted.Load(); revision > known; known = c.compacted.Load() {
		if c.compacted.CompareAndSwap(known, revision) {
			return
		}
	}
}

// ResourceOf returns the resource of a path. If the path belongs to no cache, the resource is the first part of the
// path.
func (c *Caches) ResourceOf(path string) schema.GroupResource {
	if cache := cacheOf(*c.byPath.Load(), path); cache != nil && cache.extract.Resource.Resource != "" {
		return cache.extract.Resource
	}
	first, _, _ := strings.Cut(path, "/")
	return schema.GroupResource{Resource: first}
}

// cacheOf returns the cache of the collection that a path belongs to, nil if it has none. Paths of collections have
// one part ("pods") or two ("services/specs").
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
