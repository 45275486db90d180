package registry

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"quorate.dev/apiserver/watchcache"
)

// WatchOptions are a client's validated options.
type WatchOptions struct {
	Selection
	// ResourceVersion is the revision after which events follow; "": the current one; "0": that of any cached state.
	ResourceVersion string
	// InitialEvents requests a state not older than ResourceVersion as ADDED events first.
	InitialEvents bool
}

// Watch is a cursor into the events of a collection. It holds no events and has no goroutine. It must be used by one
// goroutine at a time.
type Watch struct {
	target    Target
	selection Selection
	// Initial has the selected entries of the initial state; nil without InitialEvents.
	Initial []*watchcache.Entry
	// Start is the revision after which events follow.
	Start   int64
	watcher watcher
	// stored is set if there is no watch cache between the watch and storage.
	stored bool
	// undelivered are events whose conversion by a webhook the caller did not wait for. Next returns them first.
	undelivered []watchcache.Event
	revision    int64 // that comes with undelivered
}

// watcher is a *watchcache.Watcher or a *watchcache.StoredWatcher.
type watcher interface {
	Next(ctx context.Context) ([]watchcache.Event, int64, error)
	RequestProgress()
	Revision() int64
	Oldest() int64
	Close()
}

// WatchEvent is an event as one client sees it: an update that makes an object match the selectors, or no longer
// match, is ADDED or DELETED.
type WatchEvent struct {
	Type watch.EventType
	*watchcache.Event
}

// Watch watches the target's collection, or one object if the target has a name. The caller must close it. If the
// resource's definition changes meanwhile and its cache is dropped, it continues with the new cache.
func (r *Registry) Watch(ctx context.Context, t Target, options WatchOptions) (*Watch, error) {
	for {
		w, err := r.watchOnce(ctx, t, options)
		if again, err := r.dropped(t, err); !again || ctx.Err() != nil {
			return w, err
		}
	}
}

func (r *Registry) watchOnce(ctx context.Context, t Target, options WatchOptions) (*Watch, error) {
	w := &Watch{target: t, selection: options.Selection, stored: r.bypassesCache(t)}
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
		w.watcher, err = r.cache(t.Match).WatchStored(context.WithoutCancel(ctx), t.prefix(), w.Start)
		return w, status(err, t)
	}
	watcher, err := r.cache(t.Match).Watch(w.Start, scope(t, options.Selection))
	if err != nil {
		return nil, w.error(err, w.Start, r.cache(t.Match).Oldest())
	}
	w.watcher = watcher
	watcher.CountInitial(len(w.Initial))
	return w, nil
}

// startRevision returns the revision after which a watch without initial events starts.
func (r *Registry) startRevision(ctx context.Context, t Target, resourceVersion string) (int64, error) {
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

func (w *Watch) readInitial(ctx context.Context, r *Registry, resourceVersion string) error {
	at := r.storageOf(w.target.Match)
	snapshot, err := r.snapshot(ctx, w.target, resourceVersion)
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
	w.Initial = []*watchcache.Entry{}
	collection := w.target.collection()
	if w.target.ConvertsRemotely && w.selection.needsConversion() {
		return w.readConverted(ctx, r, snapshot)
	}
	var failure error
	visited := 0
	w.selection.ascend(w.target, snapshot, collection, collection, func(e *watchcache.Entry) bool {
		if visited++; visited%scanInterval == 0 && ctx.Err() != nil {
			failure = ctx.Err()
			return false
		}
		selected, err := w.selected(ctx, e)
		if selected {
			w.Initial = append(w.Initial, e)
		}
		failure = err
		return err == nil
	})
	return failure
}

// readConverted is the part of readInitial for objects whose labels and fields depend on a conversion webhook.
func (w *Watch) readConverted(ctx context.Context, r *Registry, snapshot *watchcache.Snapshot) error {
	collection := w.target.collection()
	list := &listing{
		registry: r, target: w.target, options: ListOptions{Selection: w.selection}, collection: collection, from: collection,
	}
	page := &List{}
	if _, err := list.scanConverted(ctx, snapshot, page); err != nil {
		return err
	}
	for _, entry := range page.Entries {
		if w.target.Name == "" || entry.Name() == w.target.Name {
			w.Initial = append(w.Initial, entry)
		}
	}
	return nil
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
	collection := w.target.collection()
	list := &listing{
		registry: r, target: w.target, options: ListOptions{Selection: w.selection},
		collection: collection, from: collection,
	}
	stored, err := list.latestStored(ctx)
	if err != nil {
		return err
	}
	defer stored.Close()
	w.Start, w.Initial = stored.Revision, []*watchcache.Entry{}
	for _, entry := range stored.Entries {
		if w.target.Name == "" || entry.Name() == w.target.Name {
			w.Initial = append(w.Initial, entry)
		}
	}
	return nil
}

// checkReached fails if storage has not reached a revision. A malformed one is a *field.Error.
func (w *Watch) checkReached(ctx context.Context, r *Registry, resourceVersion string) error {
	wanted, err := parseRevision(resourceVersion)
	if err != nil {
		return err
	}
	current, err := r.storageOf(w.target.Match).Caches.Current(ctx)
	if err == nil && wanted > current {
		return tooLarge(wanted, current)
	}
	return status(err, w.target)
}

// selected reports whether the watch selects an entry. It is false for nil.
func (w *Watch) selected(ctx context.Context, e *watchcache.Entry) (bool, error) {
	if e == nil || (w.target.Name != "" && e.Name() != w.target.Name) {
		return false, nil
	}
	return w.selection.matches(ctx, w.target, e)
}

// scope returns which events wake the watcher. Invariant: it includes every event of the selection.
func scope(t Target, selection Selection) watchcache.Scope {
	s := watchcache.Scope{Namespace: t.Namespace, Name: t.Name}
	if s.Name == "" && selection.Field != nil {
		if name, ok := selection.Field.RequiresExactMatch("metadata.name"); ok && (!t.Namespaced || t.Namespace != "") {
			s.Name = name
		}
	}
	if s.Name == "" {
		s.Field, s.Value, _ = selection.indexed(t)
	}
	return s
}

// Close ends the watch.
func (w *Watch) Close() { w.watcher.Close() }

// Poll is Next with a progress request: it returns as soon as the revision of the watch is known, for bookmarks.
func (w *Watch) Poll(ctx context.Context) ([]WatchEvent, int64, error) {
	w.watcher.RequestProgress()
	return w.Next(ctx)
}

// Next waits for changes. It returns the selected events and the revision up to which the client has seen all of
// them, which can advance without events.
func (w *Watch) Next(ctx context.Context) ([]WatchEvent, int64, error) {
	changes, revision := w.undelivered, w.revision
	if changes == nil {
		var err error
		if changes, revision, err = w.watcher.Next(ctx); err != nil {
			return nil, 0, w.error(err, w.watcher.Revision(), w.watcher.Oldest())
		}
	}
	w.undelivered = nil
	events, err := w.visible(ctx, changes)
	if err != nil && ctx.Err() != nil {
		w.undelivered, w.revision = changes, revision
		return nil, 0, ctx.Err()
	}
	if err != nil {
		return nil, 0, internalError(err)
	}
	return events, revision, nil
}

// visible returns the changes that the watch selects. A conversion webhook gets them in few calls, so that their
// encodings are made without further ones.
func (w *Watch) visible(ctx context.Context, changes []watchcache.Event) ([]WatchEvent, error) {
	if err := w.prepare(ctx, changes); err != nil {
		return nil, err
	}
	var events []WatchEvent
	var shown []*watchcache.Entry
	for i := range changes {
		kind, ok, err := w.classify(ctx, &changes[i])
		if err != nil {
			return nil, err
		}
		if ok {
			events = append(events, WatchEvent{Type: kind, Event: &changes[i]})
			if w.target.ConvertsRemotely {
				shown = append(shown, changes[i].Entry)
			}
		}
	}
	if !w.target.ConvertsRemotely {
		return events, nil
	}
	_, err := watchcache.Convert(ctx, w.target.Match, shown)
	return events, err
}

// prepare makes classify call no webhook for the changes.
func (w *Watch) prepare(ctx context.Context, changes []watchcache.Event) error {
	if !w.target.ConvertsRemotely {
		return nil
	}
	states := make([]*watchcache.Entry, 0, 2*len(changes))
	for _, change := range changes {
		if change.Previous != nil {
			states = append(states, change.Previous)
		}
		if change.Type != watchcache.Deleted {
			states = append(states, change.Entry)
		}
	}
	return w.selection.prepare(ctx, w.target, states)
}

// classify returns the event type of a change for the watch's selectors, and whether the change is visible at all.
func (w *Watch) classify(ctx context.Context, change *watchcache.Event) (watch.EventType, bool, error) {
	if change.Type == watchcache.Deleted {
		was, err := w.selected(ctx, change.Previous)
		return watch.Deleted, was, err
	}
	is, err := w.selected(ctx, change.Entry)
	if err != nil {
		return "", false, err
	}
	was, err := w.selected(ctx, change.Previous)
	switch {
	case err != nil:
		return "", false, err
	case is && was:
		return watch.Modified, true, nil
	case is:
		return watch.Added, true, nil
	case was:
		return watch.Deleted, true, nil
	}
	return "", false, nil
}

// error returns the API status of a watch that cannot start or continue after a revision. oldest is the revision after
// which the cache has events. kube-apiserver does not cache resources with a TTL, so their error text is etcd3's.
func (w *Watch) error(err error, after, oldest int64) error {
	switch {
	case !errors.Is(err, watchcache.ErrExpired):
		return status(err, w.target)
	case w.stored || w.target.TimeToLive != nil:
		return apierrors.NewResourceExpired("The resourceVersion for the provided watch is too old.")
	}
	return tooOld(after, oldest)
}

func tooOld(revision, oldest int64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", revision, oldest))
}
