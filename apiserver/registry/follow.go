package registry

import (
	"context"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/watchcache"
)

// Follow calls handle with every object of a resource, present and future, one call at a time, until ctx ends. The
// object is nil when it was deleted. synced is called once, after all that were there at the start. Objects are hub
// objects and belong to the handler.
func (r *Registry) Follow(ctx context.Context, name schema.GroupResource, handle func(key string, object runtime.Object), synced func()) error {
	t, err := r.target(name, "", "", "")
	if err != nil {
		return err
	}
	return r.FollowEntries(ctx, name, func(before, after *watchcache.Entry) {
		if after == nil {
			handle(t.key(before), nil)
			return
		}
		object, err := r.Hub(t, after)
		if err != nil {
			r.logger.Error(err, "an object cannot be decoded and is passed over", "key", after.Path())
			return
		}
		handle(t.key(after), object)
	}, synced)
}

// FollowEntries is Follow for those who decode for themselves, or not at all. before is what handle was told last of
// the object, nil where that is nothing; after is nil when the object was deleted.
func (r *Registry) FollowEntries(ctx context.Context, name schema.GroupResource, handle func(before, after *watchcache.Entry), synced func()) error {
	t, err := r.target(name, "", "", "")
	if err != nil {
		return err
	}
	return r.follow(ctx, t, handle, synced)
}

// FollowObject calls handle whenever one object may have changed, beginning now, until ctx ends.
func (r *Registry) FollowObject(ctx context.Context, name schema.GroupResource, namespace, object string, handle func()) error {
	t, err := r.target(name, "", namespace, object)
	if err != nil {
		return err
	}
	return r.follow(ctx, t, func(_, _ *watchcache.Entry) { handle() }, handle)
}

func (r *Registry) follow(ctx context.Context, t Target, handle func(before, after *watchcache.Entry), synced func()) error {
	f := follower{registry: r, target: t, handle: handle, synced: synced, known: map[string]*watchcache.Entry{}}
	for {
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !apierrors.IsResourceExpired(err) {
			r.logger.Error(err, "following a resource was interrupted; starting again", "resource", t.GroupResource().String())
			if err := r.pause(ctx); err != nil {
				return err
			}
		}
	}
}

// pause waits a moment before trying again.
func (r *Registry) pause(ctx context.Context) error {
	timer := r.clock.NewTimer(200 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C():
		return nil
	}
}

// follower remembers what it has handed out, so that it can tell what vanished while it was not looking. The entries
// are those of the cache, not copies.
type follower struct {
	registry *Registry
	target   Target
	handle   func(before, after *watchcache.Entry)
	synced   func()
	known    map[string]*watchcache.Entry
}

func (f *follower) follow(ctx context.Context) error {
	w, err := f.registry.Watch(ctx, f.target, WatchOptions{InitialEvents: true, ResourceVersion: ""})
	if err != nil {
		return err
	}
	defer w.Close()
	present := make(map[string]struct{}, len(w.Initial))
	for _, entry := range w.Initial {
		present[entry.Path()] = struct{}{}
		f.put(entry)
	}
	for path := range f.known {
		if _, ok := present[path]; !ok {
			f.remove(path)
		}
	}
	if f.synced != nil {
		f.synced()
		f.synced = nil
	}
	for {
		events, _, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for _, event := range events {
			if event.Event.Type == watchcache.Deleted {
				f.remove(event.Entry.Path())
				continue
			}
			f.put(event.Entry)
		}
	}
}

func (f *follower) put(entry *watchcache.Entry) {
	before := f.known[entry.Path()]
	if before != nil && before.Revision() == entry.Revision() {
		return // seen before the watch was begun anew
	}
	f.known[entry.Path()] = entry
	f.handle(before, entry)
}

func (f *follower) remove(path string) {
	before := f.known[path]
	if before == nil {
		return
	}
	delete(f.known, path)
	f.handle(before, nil)
}

// key is "namespace/name", or "name" for a resource without namespaces.
func (t Target) key(entry *watchcache.Entry) string { return entry.Path()[len(t.StoragePath)+1:] }
