package client

import (
	"context"
	goruntime "runtime"
	"slices"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
	"quorate.dev/panics"
)

// Follow follows the objects that a key selects, as package follow describes. It returns an error only for an unknown
// resource and when ctx ends; any other error restarts the watch, immediately if the watch has expired, else after a
// pause.
func (c *Client) Follow(ctx context.Context, key resource.Key, options follow.Options) error {
	t, err := c.options.Registry.Target(key)
	if err != nil {
		return err
	}
	f := &follower{client: c, target: t, options: options, known: map[string]*watchcache.Entry{}}
	for {
		err := f.follow(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !apierrors.IsResourceExpired(err) {
			c.options.Logger.Error(err, "Watch failed; restarting it", "resource", t.GroupResource().String())
			if err := c.pause(ctx); err != nil {
				return err
			}
		}
	}
}

// AwaitFollowed returns when a call of Follow with a progress has handled every change to the resource that was stored
// before the call of AwaitFollowed. With an etcd too old for progress requests, it waits only for the changes that have
// reached the watch cache.
func (c *Client) AwaitFollowed(ctx context.Context, name schema.GroupResource, progress *follow.Progress) error {
	t, err := c.options.Registry.Target(resource.Key{GroupResource: name})
	if err != nil {
		return err
	}
	revision, err := c.options.Registry.Revision(ctx, t)
	if err != nil {
		return err
	}
	return progress.Await(ctx, revision)
}

// pause waits before a watch is restarted, so that an error that persists is not logged thousands of times a second.
func (c *Client) pause(ctx context.Context) error {
	timer := c.options.Clock.NewTimer(200 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C():
		return nil
	}
}

// follower is one call of Follow. It survives restarts of its watch.
type follower struct {
	client   *Client
	target   resource.Target
	options  follow.Options
	isSynced bool
	// decoded has the objects of the next entries of the initial state. It bounds how many objects are decoded at a time.
	decoded map[*watchcache.Entry]internal
	// known has the entry of the last call per path. A restarted watch delivers no DELETED events for objects deleted
	// in between; they are the known ones that its initial state lacks. Entries are shared with the watch cache.
	known map[string]*watchcache.Entry
}

// handle calls the functions of the options with a change.
func (f *follower) handle(ctx context.Context, before, after *watchcache.Entry) {
	if f.options.Entries != nil {
		f.options.Entries(before, after)
	}
	if f.options.Changed != nil {
		f.options.Changed()
	}
	switch {
	case f.options.Objects == nil:
	case after == nil:
		f.options.Objects(f.target.ObjectKey(before.Path()), nil)
	default:
		f.handleObject(ctx, after)
	}
}

// handleObject calls Objects or Undecodable.
func (f *follower) handleObject(ctx context.Context, entry *watchcache.Entry) {
	key := f.target.ObjectKey(entry.Path())
	decoded, ok := f.decoded[entry]
	if !ok {
		decoded.object, decoded.err = f.client.options.Registry.Decode(ctx, f.target, entry)
	}
	if decoded.err == nil {
		f.options.Objects(key, decoded.object)
		return
	}
	f.client.options.Logger.Error(decoded.err, "Skipping an object that cannot be decoded", "key", entry.Path())
	if f.options.Undecodable != nil {
		f.options.Undecodable(key)
	}
}

// followBatch is the number of entries of the initial state that are decoded at a time.
const followBatch = 64

// follow runs one watch until it fails: it handles the initial state, reports the known objects that the initial state
// lacks as deleted, and then handles events. The initial state is handled in batches, each of which is decoded on all
// processors; followBatch bounds the decoded objects in memory.
func (f *follower) follow(ctx context.Context) error {
	w, err := f.client.options.Registry.Watch(ctx, f.target, registry.WatchOptions{
		InitialEvents: true, ResourceVersion: "",
	})
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
		f.handleBatch(ctx, batch)
	}
	for path := range f.known {
		if _, ok := present[path]; !ok {
			f.remove(ctx, path)
		}
	}
	f.reportSynced()
	f.options.Progress.Begin(w.Start, w.RequestProgress)
	defer f.options.Progress.End()
	for {
		events, revision, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for _, event := range events {
			if event.Event.Type == watchcache.Deleted {
				f.remove(ctx, event.Entry.Path())
				continue
			}
			f.put(ctx, event.Entry)
		}
		f.options.Progress.Advance(revision)
	}
}

// reportSynced reports once that all objects that existed at the start have been handled.
func (f *follower) reportSynced() {
	if f.isSynced {
		return
	}
	f.isSynced = true
	if f.options.Changed != nil {
		f.options.Changed()
	}
	if f.options.Synced != nil {
		f.options.Synced()
	}
}

// handleBatch handles entries of the initial state.
func (f *follower) handleBatch(ctx context.Context, entries []*watchcache.Entry) {
	if f.options.Objects != nil {
		f.decoded = f.client.internals(ctx, f.target, entries)
		defer func() { f.decoded = nil }()
	}
	for _, entry := range entries {
		f.put(ctx, entry)
	}
}

// seen reports whether an entry was handled before the watch was restarted.
func (f *follower) seen(entry *watchcache.Entry) bool {
	before := f.known[entry.Path()]
	return before != nil && before.Revision() == entry.Revision()
}

// put handles a new or changed entry, unless it is known.
func (f *follower) put(ctx context.Context, entry *watchcache.Entry) {
	if f.seen(entry) {
		return
	}
	before := f.known[entry.Path()]
	f.known[entry.Path()] = entry
	f.handle(ctx, before, entry)
}

// remove handles the deletion of a known object.
func (f *follower) remove(ctx context.Context, path string) {
	before := f.known[path]
	if before == nil {
		return
	}
	delete(f.known, path)
	f.handle(ctx, before, nil)
}

// internal is a decoded entry.
type internal struct {
	object runtime.Object
	err    error
}

// internals decodes entries on all processors: a restarted server serves no custom resource before it has decoded all
// definitions.
func (c *Client) internals(
	ctx context.Context, t resource.Target, entries []*watchcache.Entry,
) map[*watchcache.Entry]internal {
	_, _ = watchcache.Convert(ctx, t.Match, entries) // Decode returns the error of each entry
	decoded := make([]internal, len(entries))
	var next atomic.Int64
	var workers panics.Group
	for range min(goruntime.GOMAXPROCS(0), len(entries)) {
		workers.Start(func() {
			for i := next.Add(1) - 1; int(i) < len(entries); i = next.Add(1) - 1 {
				decoded[i].object, decoded[i].err = c.options.Registry.Decode(ctx, t, entries[i])
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
