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

// Follow calls handle with every existing and future state of the objects of a resource, one call at a time, until
// ctx ends. The object is nil after a deletion; otherwise it is the internal version and owned by handle. synced is
// called once, after the objects that existed at the start.
func (c *Client) Follow(ctx context.Context, name schema.GroupResource, handle func(key string, object runtime.Object), synced func()) error {
	return c.FollowWithProgress(ctx, name, nil, handle, synced)
}

// FollowWithProgress is Follow that reports its progress. One progress must not be used by concurrent calls.
func (c *Client) FollowWithProgress(
	ctx context.Context, name schema.GroupResource, progress *Progress,
	handle func(key string, object runtime.Object), synced func(),
) error {
	t, err := c.target(resource.Key{GroupResource: name})
	if err != nil {
		return err
	}
	var batch map[*watchcache.Entry]internal
	return c.registry.follow(ctx, t, &follower{
		prepare: func(entries []*watchcache.Entry) { batch = c.registry.internals(ctx, t, entries) },
		handle: func(before, after *watchcache.Entry) {
			if after == nil {
				handle(t.key(before), nil)
				return
			}
			decoded, ok := batch[after]
			if !ok {
				decoded.object, decoded.err = c.registry.Decode(ctx, t, after)
			}
			if decoded.err != nil {
				c.registry.logger.Error(decoded.err, "Skipping an object that cannot be decoded", "key", after.Path())
				return
			}
			handle(t.key(after), decoded.object)
		},
		synced:   synced,
		progress: progress,
	})
}

// internal is a decoded entry.
type internal struct {
	object runtime.Object
	err    error
}

// internals decodes entries on all processors: a restarted server serves no custom resource before it has decoded all
// definitions.
func (r *Registry) internals(
	ctx context.Context, t Target, entries []*watchcache.Entry,
) map[*watchcache.Entry]internal {
	_, _ = watchcache.Convert(ctx, t.Match, entries) // Decode returns the error of each entry
	decoded := make([]internal, len(entries))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(goruntime.GOMAXPROCS(0), len(entries)) {
		workers.Go(func() {
			for i := next.Add(1) - 1; int(i) < len(entries); i = next.Add(1) - 1 {
				decoded[i].object, decoded[i].err = r.Decode(ctx, t, entries[i])
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

// FollowEntries is Follow without decoding. before is the entry of the previous call for the object, nil at the first
// call; after is nil if the object was deleted.
func (c *Client) FollowEntries(ctx context.Context, name schema.GroupResource, handle func(before, after *watchcache.Entry), synced func()) error {
	t, err := c.target(resource.Key{GroupResource: name})
	if err != nil {
		return err
	}
	return c.registry.follow(ctx, t, &follower{handle: handle, synced: synced})
}

// FollowObject calls handle at the start and whenever the object may have changed, until ctx ends.
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
			r.logger.Error(err, "Watch failed; restarting it", "resource", t.GroupResource().String())
			if err := r.pause(ctx); err != nil {
				return err
			}
		}
	}
}

// pause waits before a watch is restarted.
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

// follower is one Follow call. It survives restarts of its watch.
type follower struct {
	registry *Registry
	target   Target
	// prepare, if set, is called with the next entries of the initial state before handle is, and with nil after
	// them. It bounds how many objects are decoded at a time.
	prepare func([]*watchcache.Entry)
	handle  func(before, after *watchcache.Entry)
	synced  func()
	// progress may be nil.
	progress *Progress
	// known has the entry of the last call per path. A restarted watch delivers no DELETED events for objects deleted
	// in between; they are the known ones that its initial state lacks. Entries are shared with the watch cache.
	known map[string]*watchcache.Entry
}

// followBatch is the number of entries per call of prepare.
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
	f.progress.begin(w)
	defer f.progress.end()
	for {
		events, revision, err := w.Next(ctx)
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
		f.progress.advance(revision)
	}
}

// handleBatch prepares and handles entries.
func (f *follower) handleBatch(entries []*watchcache.Entry) {
	if f.prepare != nil {
		f.prepare(entries)
		defer f.prepare(nil)
	}
	for _, entry := range entries {
		f.put(entry)
	}
}

// seen reports whether an entry was handled before the watch was restarted.
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
