package informers

import (
	"context"

	"k8s.io/client-go/tools/cache"

	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
	"quorate.dev/panics"
)

// registration is an event handler that follows the resource of an informer.
type registration struct {
	informer *informer
	handler  cache.ResourceEventHandler
	// synced is closed when the handler has been called with all objects of the initial state.
	synced chan struct{}
	// stopped and cancel are guarded by informer.mu.
	stopped bool
	cancel  context.CancelFunc
}

// start starts to follow the resource. The caller must hold informer.mu.
func (r *registration) start(ctx context.Context) {
	if r.stopped {
		return
	}
	ctx, r.cancel = context.WithCancel(ctx)
	go r.follow(ctx)
}

// stop ends the stream of events. The caller must hold informer.mu.
func (r *registration) stop() {
	r.stopped = true
	if r.cancel != nil {
		r.cancel()
	}
}

func (r *registration) follow(ctx context.Context) {
	handle := func(before, after *watchcache.Entry) {
		if ctx.Err() == nil {
			r.handle(before, after)
		}
	}
	err := r.informer.source.Follow(ctx, resource.Key{GroupResource: r.informer.resource.GroupResource()}, follow.Options{
		Entries: handle, Synced: func() { close(r.synced); r.informer.closeIfSynced() },
	})
	if err != nil && ctx.Err() == nil {
		r.informer.logger.Error(err, "Failed to follow a resource")
	}
}

// handle calls the handler. An object that fails to decode is treated as absent. A handler that panics gets no more
// events, because the state that it derives from events may be inconsistent.
func (r *registration) handle(before, after *watchcache.Entry) {
	o, err := r.informer.open()
	if err != nil {
		// The resource is no longer served.
		return
	}
	if r.informer.failed == nil {
		r.call(o, before, after)
		return
	}
	err = panics.Catch(func() error {
		r.call(o, before, after)
		return nil
	})
	if err != nil {
		r.fail(err)
	}
}

// fail ends the stream of events and reports why.
func (r *registration) fail(err error) {
	r.informer.mu.Lock()
	r.stop()
	r.informer.mu.Unlock()
	r.informer.failed(err)
}

// call may panic.
func (r *registration) call(o *open, before, after *watchcache.Entry) {
	then, now := r.informer.readable(o, before), r.informer.readable(o, after)
	switch {
	case now != nil && then != nil:
		r.handler.OnUpdate(then, now)
	case now != nil:
		r.handler.OnAdd(now, !r.HasSynced())
	case then != nil:
		r.handler.OnDelete(then)
	}
}

// HasSynced implements cache.ResourceEventHandlerRegistration.
func (r *registration) HasSynced() bool { return isClosed(r.synced) }

// HasSyncedChecker implements cache.ResourceEventHandlerRegistration.
func (r *registration) HasSyncedChecker() cache.DoneChecker {
	return checker{name: r.informer.resource.String(), done: r.synced}
}
