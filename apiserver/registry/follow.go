package registry

import (
	"context"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// Follow calls handle with every object of a resource, present and future, one call at a time, until ctx ends. The
// object is nil when it was deleted. synced is called once, after all that were there at the start. Objects are internal version
// objects and belong to the handler.
func (c *Client) Follow(ctx context.Context, name schema.GroupResource, handle func(key string, object runtime.Object), synced func()) error {
	t, err := c.target(resource.Key{GroupResource: name})
	if err != nil {
		return err
	}
	var batch map[*watchcache.Entry]internal
	return c.registry.follow(ctx, t, &follower{
		prepare: func(entries []*watchcache.Entry) { batch = c.registry.internals(t, entries) },
		handle: func(before, after *watchcache.Entry) {
			if after == nil {
				handle(t.key(before), nil)
				return
			}
			decoded, ok := batch[after]
			if !ok {
				decoded.object, decoded.err = c.registry.Decode(t, after)
			}
			if decoded.err != nil {
				c.registry.logger.Error(decoded.err, "an object cannot be decoded and is passed over", "key", after.Path())
				return
			}
			handle(t.key(after), decoded.object)
		},
		synced: synced,
	})
}

// internal version is what came of decoding an entry.
type internal struct {
	object runtime.Object
	err    error
}

// internal versions decodes entries on all processors: a restarted server serves custom resources only once it has read all their
// definitions.
func (r *Registry) internals(t Target, entries []*watchcache.Entry) map[*watchcache.Entry]internal {
	decoded := make([]internal, len(entries))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(goruntime.GOMAXPROCS(0), len(entries)) {
		workers.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(entries); i = next.Add(1) - 1 {
				decoded[i].object, decoded[i].err = r.Decode(t, entries[i])
			}
		})
	}
	workers.Wait()
	byEntry := make(map[*watchcache.Entry]internal, len(entries))
	for i, entry := range entries {
		byEntry[entry] = decoded[i]
	}
	return byEntry
}

// FollowEntries is Follow for those who decode for themselves, or not at all. before is what handle was told last of
// the object, nil where that is nothing; after is nil when the object was deleted.
func (c *Client) FollowEntries(ctx context.Context, name schema.GroupResource, handle func(before, after *watchcache.Entry), synced func()) error {
	t, err := c.target(resource.Key{GroupResource: name})
	if err != nil {
		return err
	}
	return c.registry.follow(ctx, t, &follower{handle: handle, synced: synced})
}

// FollowObject calls handle whenever one object may have changed, beginning now, until ctx ends.
func (c *Client) FollowObject(ctx context.Context, key resource.Key, handle func()) error {
	t, err := c.target(key)
	if err != nil {
		return err
	}
	return c.registry.follow(ctx, t, &follower{handle: func(_, _ *watchcache.Entry) { handle() }, synced: handle})
}

func (r *Registry) follow(ctx context.Context, t Target, f *follower) error {
	f.registry, f.target, f.known = r, t, map[string]*watchcache.Entry{}
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
	// prepare, if set, is called with the entries that handle is called with next, and with nil after those. It bounds how
	// much of what existed at the start is decoded at a time.
	prepare func([]*watchcache.Entry)
	handle  func(before, after *watchcache.Entry)
	synced  func()
	known   map[string]*watchcache.Entry
}

// followBatch is how many entries are prepared at a time.
const followBatch = 64

func (f *follower) follow(ctx context.Context) error {
	w, err := f.registry.Watch(ctx, f.target, WatchOptions{InitialEvents: true, ResourceVersion: ""})
	if err != nil {
		return err
	}
	defer w.Close()
	present := make(map[string]struct{}, len(w.Initial))
	var unseen []*watchcache.Entry
	for _, entry := range w.Initial {
		present[entry.Path()] = struct{}{}
		if !f.seen(entry) {
			unseen = append(unseen, entry)
		}
	}
	for batch := range slices.Chunk(unseen, followBatch) {
		f.handleBatch(batch)
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

// handleBatch handles entries that are prepared together.
func (f *follower) handleBatch(entries []*watchcache.Entry) {
	if f.prepare != nil {
		f.prepare(entries)
		defer f.prepare(nil)
	}
	for _, entry := range entries {
		f.put(entry)
	}
}

// seen reports whether an entry was handled before the watch began anew.
func (f *follower) seen(entry *watchcache.Entry) bool {
	before := f.known[entry.Path()]
	return before != nil && before.Revision() == entry.Revision()
}

func (f *follower) put(entry *watchcache.Entry) {
	if f.seen(entry) {
		return
	}
	before := f.known[entry.Path()]
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
