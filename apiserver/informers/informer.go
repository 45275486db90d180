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

// informer implements cache.SharedIndexInformer. Its store reads from the watch cache. Each handler follows the
// resource independently and gets all events in order.
type informer struct {
	*collection

	// mu guards running, stopped, used, handlers and indexes.
	mu sync.Mutex
	// running is the context of Run; nil before Run.
	running context.Context
	// stopped is set when Run has returned. Invariant: while it is set, no handler is added.
	stopped bool
	// used is set if the store or HasSyncedChecker has been used, so that Run loads the watch cache.
	used     bool
	handlers []*registration
	indexes  indexes

	// loading is set while and after the watch cache is loaded.
	loading atomic.Bool
	// loaded is closed when the watch cache has been loaded.
	loaded chan struct{}
	// synced is closed, with mu locked, when the watch cache has been loaded and all indexes have been built.
	synced chan struct{}
}

var _ cache.SharedIndexInformer = &informer{}

func newInformer(name schema.GroupVersionResource, options Options) *informer {
	return &informer{
		collection: &collection{
			resource: name, source: options.Source, catalog: options.Catalog,
			failed: options.Failed, logger: options.Logger.WithValues("resource", name.GroupResource().String()),
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

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer. It does not resync, because no event is lost.
func (i *informer) AddEventHandlerWithResyncPeriod(
	handler cache.ResourceEventHandler, _ time.Duration,
) (cache.ResourceEventHandlerRegistration, error) {
	return i.AddEventHandler(handler)
}

// AddEventHandlerWithOptions implements cache.SharedInformer.
func (i *informer) AddEventHandlerWithOptions(
	handler cache.ResourceEventHandler, _ cache.HandlerOptions,
) (cache.ResourceEventHandlerRegistration, error) {
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

// load starts to load the watch cache in the background, unless it has been started.
func (i *informer) load() {
	o, err := i.open()
	if err != nil {
		// HasSynced calls load again.
		return
	}
	if !i.loading.CompareAndSwap(false, true) {
		return
	}
	go func() {
		if _, err := o.cache.Snapshot(context.Background(), 0); err != nil {
			// The server shuts down, or the definition has changed; HasSynced calls load again.
			i.loading.Store(false)
			return
		}
		close(i.loaded)
		i.closeIfSynced()
	}()
}

// HasSynced implements cache.SharedInformer. It reports whether the watch cache has been loaded and the indexes have
// been built.
func (i *informer) HasSynced() bool {
	if !isClosed(i.loaded) {
		i.load()
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.complete()
}

// complete reports whether the watch cache has been loaded and the indexes have been built. The caller must hold i.mu.
func (i *informer) complete() bool {
	for _, index := range i.indexes {
		if index.registration == nil || !index.registration.HasSynced() {
			return false
		}
	}
	return isClosed(i.loaded)
}

// closeIfSynced closes synced if complete returns true.
func (i *informer) closeIfSynced() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !isClosed(i.synced) && i.complete() {
		close(i.synced)
	}
}

// HasSyncedChecker implements cache.SharedInformer. It marks the informer as used, so that Run loads a resource that is
// not served yet.
func (i *informer) HasSyncedChecker() cache.DoneChecker {
	i.mu.Lock()
	i.used = true
	i.mu.Unlock()
	i.load()
	return checker{name: i.resource.String(), done: i.synced}
}

// SetWatchErrorHandler implements cache.SharedInformer. It does nothing, because there is no watch that could fail.
func (i *informer) SetWatchErrorHandler(cache.WatchErrorHandler) error { return nil }

// SetWatchErrorHandlerWithContext implements cache.SharedInformer.
func (i *informer) SetWatchErrorHandlerWithContext(cache.WatchErrorHandlerWithContext) error {
	return nil
}

// SetTransform implements cache.SharedInformer. It rejects transforms, because decoded objects are shared between the
// users of informers and must not be changed.
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

// passive is a controller that does nothing, because the watch cache drives the informer.
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
