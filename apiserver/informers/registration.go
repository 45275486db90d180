package informers

import (
	"context"

	"k8s.io/client-go/tools/cache"

	"quorate.dev/apiserver/watchcache"
)

// registration is a handler that follows the resource.
type registration struct {
	informer *informer
	handler  cache.ResourceEventHandler
	synced   chan struct{} // closed when the handler got all objects of the initial state
	stopped  bool          // guarded by informer.mu, like cancel
	cancel   context.CancelFunc
}

// start begins to follow the resource. The caller holds informer.mu.
func (r *registration) start(ctx context.Context) {
	if r.stopped {
		return
	}
	ctx, r.cancel = context.WithCancel(ctx)
	go r.follow(ctx)
}

// stop ends the stream of events. The caller holds informer.mu.
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
	err := r.informer.source.FollowEntries(ctx, r.informer.resource.GroupResource(), handle, func() { close(r.synced); r.informer.closeIfSynced() })
	if err != nil && ctx.Err() == nil {
		r.informer.logger.Error(err, "Failed to follow a resource")
	}
}

// handle calls the handler. An object that fails to decode is treated as absent.
func (r *registration) handle(before, after *watchcache.Entry) {
	o, err := r.informer.open()
	if err != nil {
		return // no longer served
	}
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
