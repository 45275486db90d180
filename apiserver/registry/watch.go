package registry

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"quorate.dev/apiserver/registry/selection"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// WatchOptions are a client's validated options.
type WatchOptions struct {
	Selection
	// ResourceVersion is the revision after which events follow; "" means the current revision, and "0" the revision of
	// any cached state.
	ResourceVersion string
	// InitialEvents requests a state not older than ResourceVersion as ADDED events first.
	InitialEvents bool
}

// Watch is a cursor into the events of a collection. It holds no events and has no goroutine. It must be used by one
// goroutine at a time.
type Watch struct {
	filter selection.Filter
	// Initial has the selected entries of the initial state; nil without InitialEvents.
	Initial []*watchcache.Entry
	// Start is the revision after which events follow.
	Start   int64
	watcher watcher
	// stored is set if there is no watch cache between the watch and storage.
	stored bool
	// undelivered has events for whose conversion by a webhook the caller did not wait. Next returns them first.
	// Invariant: the watcher has returned these events, and the caller has not seen any of them.
	undelivered []watchcache.Event
	revision    int64 // revision up to which undelivered has all events
	// sharded counts the watch while it is open; nil: the watch has no shard, or is not served by the cache.
	sharded *watchcache.ShardedWatch
}

// watcher delivers the events of a collection: a *watchcache.Watcher, whose events all watches share, or, if the
// resource is not cached (Registry.bypassesCache), a *watchcache.StoredWatcher, which has a separate watch of etcd.
type watcher interface {
	Next(ctx context.Context) ([]watchcache.Event, int64, error)
	RequestProgress()
	Revision() int64
	Oldest() int64
	Close()
}

// WatchEvent is an event as one client sees it.
type WatchEvent = selection.Event

// Watch watches the target's collection, or one object if the target has a name. The caller must close the watch. If
// the resource's definition changes during the call, so that its cache is dropped, Watch continues with the new cache;
// a watch that has begun ends in that case (ErrDropped).
func (r *Registry) Watch(ctx context.Context, t resource.Target, options WatchOptions) (*Watch, error) {
	for {
		w, err := r.watchOnce(ctx, t, options)
		if again, err := r.dropped(t, err); !again || ctx.Err() != nil {
			return w, err
		}
	}
}

// watchOnce is Watch with the cache of this moment. A watch has no gap between its initial and its following events,
// although they are separate calls of the cache: the watcher starts at the revision of the snapshot, and replays the
// events after it from the ring. The watch outlives ctx; only Close ends it.
func (r *Registry) watchOnce(ctx context.Context, t resource.Target, options WatchOptions) (*Watch, error) {
	w := &Watch{filter: selection.Filter{Selection: options.Selection, Target: t}, stored: r.bypassesCache(t)}
	if options.Shard != nil && !w.stored {
		w.filter.OutsideShard = r.Cache(t.Match).CountOutsideShard
	}
	err := r.awaitInitialized(ctx, t)
	if err != nil {
		return nil, status(err, t)
	}
	if options.InitialEvents && w.stored {
		err = w.readInitialStored(ctx, r, options.ResourceVersion)
	} else if options.InitialEvents {
		err = w.readInitial(ctx, r, options.ResourceVersion)
	} else {
		w.Start, err = r.startRevision(ctx, t, options.ResourceVersion)
	}
	if err != nil {
		return nil, err
	}
	if w.stored {
		w.watcher, err = r.Cache(t.Match).WatchStored(context.WithoutCancel(ctx), t.Prefix(), w.Start)
		return w, status(err, t)
	}
	watcher, err := r.Cache(t.Match).Watch(w.Start, w.filter.Scope())
	if err != nil {
		return nil, w.error(err, w.Start, r.Cache(t.Match).Oldest())
	}
	w.watcher = watcher
	watcher.CountInitial(len(w.Initial))
	if options.Shard != nil {
		w.sharded = r.Cache(t.Match).StartShardedWatch()
	}
	return w, nil
}

// startRevision returns the revision after which a watch without initial events starts. A revision before the current
// definition of a custom resource (Definition.Since) has expired: the objects that the client holds may look different
// in the new definition, and only a list returns all of them.
func (r *Registry) startRevision(ctx context.Context, t resource.Target, resourceVersion string) (int64, error) {
	if resourceVersion == "" {
		revision, err := r.storageOf(t.Match).Caches.Current(ctx)
		return revision, status(err, t)
	}
	revision, err := parseRevision(resourceVersion)
	if err == nil && revision > 0 && revision < t.Since && !r.bypassesCache(t) {
		return 0, tooOld(revision, t.Since)
	}
	if err != nil || revision > 0 {
		return revision, err
	}
	if r.bypassesCache(t) {
		revision, err := r.storageOf(t.Match).Caches.Current(ctx)
		return revision, status(err, t)
	}
	snapshot, err := r.snapshotOnce(ctx, t, resourceVersion)
	if err != nil {
		return 0, err
	}
	return snapshot.Revision(), nil
}

// readInitial reads the initial state from the watch cache. If the cache lags behind a consistent read, the watch
// fails, and clients try again; only with an etcd too old for progress requests, with which waiting does not help, is
// the state read from storage.
func (w *Watch) readInitial(ctx context.Context, r *Registry, resourceVersion string) error {
	at := r.storageOf(w.filter.Target.Match)
	snapshot, err := r.snapshot(ctx, w.filter.Target, resourceVersion)
	if errors.Is(err, watchcache.ErrTooNew) && !at.Store.SupportsProgress() {
		return w.readInitialStored(ctx, r, "")
	}
	if errors.Is(err, watchcache.ErrTooNew) {
		revision, _ := at.Caches.Current(ctx)
		return tooLarge(revision, at.Caches.Revision())
	}
	if err != nil {
		return err
	}
	w.Start = snapshot.Revision()
	page := selection.Page{Entries: []*watchcache.Entry{}}
	err = w.filter.Scan(ctx, snapshot, w.filter.Target.Collection(), &page)
	w.Initial = page.Entries
	if err != nil && w.filter.NeedsConversion() {
		return internalError(err)
	}
	return err
}

// readInitialStored reads the initial state from storage, for a resource that is not cached, or an etcd too old for
// progress notifications that would show that the cache is current. Later events are delivered when the cache receives
// them. kube-apiserver refuses a watch of such an etcd.
func (w *Watch) readInitialStored(ctx context.Context, r *Registry, resourceVersion string) error {
	if resourceVersion != "" {
		if err := w.checkReached(ctx, r, resourceVersion); err != nil {
			return err
		}
	}
	stored, err := r.newListing(w.filter.Target, ListOptions{Selection: w.filter.Selection}).latestStored(ctx)
	if err != nil {
		return err
	}
	defer stored.Close()
	w.Start, w.Initial = stored.Revision, []*watchcache.Entry{}
	for _, entry := range stored.Entries {
		if w.filter.Target.Name == "" || entry.Name() == w.filter.Target.Name {
			w.Initial = append(w.Initial, entry)
		}
	}
	return nil
}

// checkReached fails if storage has not reached a revision of the client. For a malformed revision it returns a
// *field.Error.
func (w *Watch) checkReached(ctx context.Context, r *Registry, resourceVersion string) error {
	wanted, err := parseRevision(resourceVersion)
	if err != nil {
		return err
	}
	current, err := r.storageOf(w.filter.Target.Match).Caches.Current(ctx)
	if err == nil && wanted > current {
		return tooLarge(wanted, current)
	}
	return status(err, w.filter.Target)
}

// Close ends the watch.
func (w *Watch) Close() {
	w.watcher.Close()
	w.sharded.Stop()
}

// RequestProgress makes a call of Next return as soon as the revision of the watch is known, even if there are no
// events. It may be called during a call of Next.
func (w *Watch) RequestProgress() { w.watcher.RequestProgress() }

// Poll is Next with a progress request: it returns as soon as the revision of the watch is known, for bookmarks.
func (w *Watch) Poll(ctx context.Context) ([]WatchEvent, int64, error) {
	w.watcher.RequestProgress()
	return w.Next(ctx)
}

// Next waits for changes. It returns the selected events and the revision up to which the client has seen all of
// them, which can advance without events. If ctx ends while a webhook converts the events, the next call returns them;
// any other error ends the watch.
func (w *Watch) Next(ctx context.Context) ([]WatchEvent, int64, error) {
	changes, revision := w.undelivered, w.revision
	if changes == nil {
		var err error
		if changes, revision, err = w.watcher.Next(ctx); err != nil {
			return nil, 0, w.error(err, w.watcher.Revision(), w.watcher.Oldest())
		}
	}
	w.undelivered = nil
	events, err := w.filter.Events(ctx, changes)
	if err != nil && ctx.Err() != nil {
		w.undelivered, w.revision = changes, revision
		return nil, 0, ctx.Err()
	}
	if err != nil {
		return nil, 0, internalError(err)
	}
	return events, revision, nil
}

// error returns the API status of a watch that cannot start or continue after a revision. oldest is the revision after
// which the cache has events. kube-apiserver does not cache resources with a TTL, so their error text is etcd3's.
func (w *Watch) error(err error, after, oldest int64) error {
	switch {
	case !errors.Is(err, watchcache.ErrExpired):
		return status(err, w.filter.Target)
	case w.stored || w.filter.Target.TimeToLive != nil:
		return apierrors.NewResourceExpired("The resourceVersion for the provided watch is too old.")
	}
	return tooOld(after, oldest)
}

// tooOld returns the error of kube-apiserver's watchCache for a watch after a revision that has expired.
func tooOld(revision, oldest int64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", revision, oldest))
}
