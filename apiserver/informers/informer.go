package informers

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
)

// informer implements cache.SharedIndexInformer. Its store reads the watch cache; each handler follows the resource on
// its own, from the state at the moment on, and gets every event in order. A handler that is slow makes nobody wait.
type informer struct {
	*collection

	mu       sync.Mutex
	running  context.Context // nil before Run
	stopped  bool
	used     bool // somebody reads it or waits for it, so that it is worth loading before it is read
	handlers []*registration
	indexes  indexes

	loading sync.Once
	loaded  chan struct{} // closed when the cache has been loaded
	synced  chan struct{} // closed, with the lock held, when besides the indexes have been made
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

var errStopped = errors.New("the informer has stopped")

// AddEventHandlerWithResyncPeriod implements cache.SharedInformer. There are no resyncs: nothing is missed.
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

// load makes sure that the cache is loaded, in the background.
func (i *informer) load() {
	o, err := i.open()
	if err != nil {
		return // HasSynced will try again
	}
	i.loading.Do(func() {
		go func() {
			if _, err := o.cache.Snapshot(context.Background(), 0); err == nil {
				close(i.loaded)
				i.settle()
			} // else the server is stopping
		}()
	})
}

// HasSynced implements cache.SharedInformer: the cache is loaded, and the indexes made.
func (i *informer) HasSynced() bool {
	if !isClosed(i.loaded) {
		i.load()
		return false
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	return i.complete()
}

// complete reports whether the cache is loaded, and the indexes made. The caller holds the lock.
func (i *informer) complete() bool {
	for _, index := range i.indexes {
		if index.registration == nil || !index.registration.HasSynced() {
			return false
		}
	}
	return isClosed(i.loaded)
}

// settle closes synced, if it is time.
func (i *informer) settle() {
	i.mu.Lock()
	defer i.mu.Unlock()
	if !isClosed(i.synced) && i.complete() {
		close(i.synced)
	}
}

// HasSyncedChecker implements cache.SharedInformer. Somebody will wait for it: what is not served yet is loaded when
// the informer runs.
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

// SetTransform implements cache.SharedInformer. Objects are shared and handed out as they are.
func (i *informer) SetTransform(transform cache.TransformFunc) error {
	if transform == nil {
		return nil
	}
	return errors.New("objects of the watch cache cannot be transformed")
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

// passive is a controller that has nothing to do: what drives an informer is the watch cache.
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
