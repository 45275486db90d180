package informers

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// informer implements cache.SharedIndexInformer. Its store reads the watch cache. Every handler follows the resource
// separately and gets all events in order.
type informer struct {
	*collection

	mu       sync.Mutex      // guards running, stopped, used, handlers and indexes
	running  context.Context // nil before Run
	stopped  bool            // Invariant: once set, no handler is added
	used     bool            // the store or HasSynced is used, so the cache is loaded at the start
	handlers []*registration
	indexes  indexes

	loading atomic.Bool   // set while and after the cache is loaded
	loaded  chan struct{} // closed when the cache is loaded
	synced  chan struct{} // closed under mu when the cache is loaded and all indexes are built
}

var _ cache.SharedIndexInformer = &informer{}

func newInformer(name schema.GroupVersionResource, options Options) *informer {
	return &informer{
		collection: &collection{
			resource: name, source: options.Source, catalog: options.Catalog,
			logger: options.Logger.WithValues("resource", name.GroupResource().String()),
		},
		indexes: indexes{},
		loaded:  make(chan struct{}),
		synced:  make(chan struct{}),
	}
}

// AddEventHandler implements cache.SharedInformer.
func (i *informer) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	if i.dynamic {
		return nil, errNoEvents
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.stopped {
		return nil, errStopped
	}
	added := &registration{informer: i, handler: handler, synced: make(chan struct{})}
	i.handlers = append(i.handlers, added)
	if i.running != nil {
		added.start(i.running)
	}
	return added, nil
}

var (
	errStopped  = errors.New("the informer has stopped")
	errNoEvents = errors.New("the informer of a resource that may come and go has no events")
)

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer. It never resyncs: no event is lost.
func (i *informer) AddEventHandlerWithResyncPeriod(handler cache.ResourceEventHandler, _ time.Duration) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// AddEventHandlerWithOptions implements cache.SharedInformer.
func (i *informer) AddEventHandlerWithOptions(handler cache.ResourceEventHandler, _ cache.HandlerOptions) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// RemoveEventHandler implements cache.SharedInformer.
func (i *informer) RemoveEventHandler(handle cache.ResourceEventHandlerRegistration) error {
	i.mu.Lock()
	defer i.mu.Unlock()
	for at, known := range i.handlers {
		if known == handle {
			i.handlers = append(i.handlers[:at:at], i.handlers[at+1:]...)
			known.stop()
			return nil
		}
	}
	return nil
}

// Run implements cache.SharedInformer.
func (i *informer) Run(stop <-chan struct{}) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		select {
		case <-stop:
			cancel()
		case <-ctx.Done():
		}
	}()
	i.RunWithContext(ctx)
}

// RunWithContext implements cache.SharedInformer.
func (i *informer) RunWithContext(ctx context.Context) {
	i.mu.Lock()
	if i.running != nil || i.stopped {
		i.mu.Unlock()
		return
	}
	i.running = ctx
	for _, handler := range i.handlers {
		handler.start(ctx)
	}
	if i.used {
		i.load()
	}
	i.mu.Unlock()
	<-ctx.Done()
	i.mu.Lock()
	defer i.mu.Unlock()
	i.stopped = true
}

// load starts loading the cache in the background, once.
func (i *informer) load() {
	o, err := i.open()
	if err != nil {
		return // HasSynced retries
	}
	if !i.loading.CompareAndSwap(false, true) {
		return
	}
	go func() {
		if _, err := o.cache.Snapshot(context.Background(), 0); err != nil {
			i.loading.Store(false) // shutdown, or the definition has changed: HasSynced retries
			return
		}
		close(i.loaded)
		i.closeIfSynced()
	}()
}

// HasSynced implements cache.SharedInformer. It reports whether the cache is loaded and the indexes are built.
func (i *informer) HasSynced() bool {
	if !isClosed(i.loaded) {
		i.load()
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.complete()
}

// complete reports whether the cache is loaded and the indexes are built. The caller holds i.mu.
func (i *informer) complete() bool {
	for _, index := range i.indexes {
		if index.registration == nil || !index.registration.HasSynced() {
			return false
		}
	}
	return isClosed(i.loaded)
}

// closeIfSynced closes synced if complete.
func (i *informer) closeIfSynced() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !isClosed(i.synced) && i.complete() {
		close(i.synced)
	}
}

// HasSyncedChecker implements cache.SharedInformer. It marks the informer as used, so that a resource that is not
// served yet is loaded when the informer runs.
func (i *informer) HasSyncedChecker() cache.DoneChecker {
	i.mu.Lock()
	i.used = true
	i.mu.Unlock()
	i.load()
	return checker{name: i.resource.String(), done: i.synced}
}

// SetWatchErrorHandler implements cache.SharedInformer. There is no watch that could fail.
func (i *informer) SetWatchErrorHandler(cache.WatchErrorHandler) error { return nil }

// SetWatchErrorHandlerWithContext implements cache.SharedInformer.
func (i *informer) SetWatchErrorHandlerWithContext(cache.WatchErrorHandlerWithContext) error {
	return nil
}

// SetTransform implements cache.SharedInformer. Decoded objects are shared between informers' users and must not be
// changed.
func (i *informer) SetTransform(transform cache.TransformFunc) error {
	if transform == nil {
		return nil
	}
	return errors.New("informers on the watch cache do not support transforms")
}

// IsStopped implements cache.SharedInformer.
func (i *informer) IsStopped() bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.stopped
}

// GetStore implements cache.SharedInformer.
func (i *informer) GetStore() cache.Store { return i.GetIndexer() }

// GetController implements cache.SharedInformer.
func (i *informer) GetController() cache.Controller { return passive{i} }

// passive is a controller without work: the watch cache drives the informer.
type passive struct{ *informer }

// RunWithContext implements cache.Controller.
func (passive) RunWithContext(context.Context) {}

// Run implements cache.Controller.
func (passive) Run(<-chan struct{}) {}

// LastSyncResourceVersion implements cache.SharedInformer.
func (i *informer) LastSyncResourceVersion() string { return store{i}.LastStoreSyncResourceVersion() }

// GetIndexer implements cache.SharedIndexInformer.
func (i *informer) GetIndexer() cache.Indexer {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.used = true
	return store{i}
}

// checker implements cache.DoneChecker.
type checker struct {
	name string
	done chan struct{}
}

func (c checker) Name() string          { return c.name }
func (c checker) Done() <-chan struct{} { return c.done }

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
