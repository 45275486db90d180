package registry

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/watch"

	"quorate.dev/apiserver/watchcache"
)

// WatchOptions are a client's options, validated.
type WatchOptions struct {
	Selection
	// ResourceVersion is where the client is: "" at this moment, "0" at whatever the cache has, else at that revision.
	ResourceVersion string
	// InitialEvents asks for the state there, or a later one, as ADDED events first.
	InitialEvents bool
}

// Watch is a client's place in the stream of changes. It is a cursor, not a queue: it holds no events and has no
// goroutine. One goroutine uses it.
type Watch struct {
	target    Target
	selection Selection
	// Initial is the state the watch starts from, selected, as ADDED events; nil when it was not asked for.
	Initial []*watchcache.Entry
	// Start is the revision after which events follow.
	Start   int64
	watcher *watchcache.Watcher
}

// WatchEvent is a change as one client sees it: with its selectors, an object may come into sight or go out of it.
type WatchEvent struct {
	Type watch.EventType
	*watchcache.Event
}

// Watch begins to follow the target's collection, or one object of it if the target has a name. A cache that was
// dropped meanwhile, because the resource's definition changed, is replaced by a new one.
func (r *Registry) Watch(ctx context.Context, t Target, options WatchOptions) (*Watch, error) {
	for {
		w, err := r.watchOnce(ctx, t, options)
		if again, err := r.dropped(t, err); !again || ctx.Err() != nil {
			return w, err
		}
	}
}

func (r *Registry) watchOnce(ctx context.Context, t Target, options WatchOptions) (*Watch, error) {
	w := &Watch{target: t, selection: options.Selection}
	var err error
	if options.InitialEvents {
		err = w.readInitial(ctx, r, options.ResourceVersion)
	} else {
		w.Start, err = r.startOf(ctx, t, options.ResourceVersion)
	}
	if err != nil {
		return nil, err
	}
	watcher, err := r.cache(t.Match).Watch(w.Start, scope(t, options.Selection))
	if err != nil {
		return nil, watchError(err, t, w.Start, r.cache(t.Match).Oldest())
	}
	w.watcher = watcher
	return w, nil
}

// startOf returns the revision after which a watch without initial events begins.
func (r *Registry) startOf(ctx context.Context, t Target, resourceVersion string) (int64, error) {
	if resourceVersion == "" {
		revision, err := r.caches.Current(ctx)
		return revision, status(err, t)
	}
	revision, err := parseRevision(resourceVersion)
	if err == nil && revision > 0 && revision < t.Since {
		return 0, tooOld(revision, t.Since)
	}
	if err != nil || revision > 0 {
		return revision, err
	}
	snapshot, err := r.snapshotOnce(ctx, t, resourceVersion)
	if err != nil {
		return 0, err
	}
	return snapshot.Revision(), nil
}

func (w *Watch) readInitial(ctx context.Context, r *Registry, resourceVersion string) error {
	snapshot, err := r.snapshot(ctx, w.target, resourceVersion)
	if errors.Is(err, watchcache.ErrTooNew) && !r.store.SupportsProgress() {
		return w.readInitialStored(ctx, r)
	}
	if errors.Is(err, watchcache.ErrTooNew) {
		revision, _ := r.caches.Current(ctx)
		return tooLarge(revision, r.caches.Revision())
	}
	if err != nil {
		return err
	}
	w.Start = snapshot.Revision()
	w.Initial = []*watchcache.Entry{}
	collection := w.target.collection()
	var failure error
	visited := 0
	snapshot.Ascend(collection, collection, func(e *watchcache.Entry) bool {
		if visited++; visited%scanInterval == 0 && ctx.Err() != nil {
			failure = ctx.Err()
			return false
		}
		selected, err := w.selected(e)
		if selected {
			w.Initial = append(w.Initial, e)
		}
		failure = err
		return err == nil
	})
	return failure
}

// readInitialStored reads the initial state from storage: etcd is too old to say whether the cache is current. What
// happens after that state is delivered when the cache receives it. kube-apiserver refuses such a watch.
func (w *Watch) readInitialStored(ctx context.Context, r *Registry) error {
	collection := w.target.collection()
	list := &listing{
		registry: r, target: w.target, options: ListOptions{Selection: w.selection}, collection: collection, from: collection,
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

// selected reports whether an entry is one the client watches.
func (w *Watch) selected(e *watchcache.Entry) (bool, error) {
	if e == nil || (w.target.Name != "" && e.Name() != w.target.Name) {
		return false, nil
	}
	return w.selection.matches(e)
}

// scope narrows what wakes the watcher. It may be wider than the selection, never narrower.
func scope(t Target, selection Selection) watchcache.Scope {
	s := watchcache.Scope{Namespace: t.Namespace, Name: t.Name}
	if s.Name == "" && selection.Field != nil {
		if name, ok := selection.Field.RequiresExactMatch("metadata.name"); ok && (!t.Namespaced || t.Namespace != "") {
			s.Name = name
		}
	}
	if s.Name == "" && selection.Field != nil {
		if node, ok := selection.Field.RequiresExactMatch(nodeField); ok {
			s.Field, s.Value = nodeField, node
		}
	}
	return s
}

// nodeField is what every kubelet selects by; its watchers are found by it.
const nodeField = "spec.nodeName"

// Close gives up the place.
func (w *Watch) Close() { w.watcher.Close() }

// Poll is Next without waiting: it tells how far the client's view reaches.
func (w *Watch) Poll(ctx context.Context) ([]WatchEvent, int64, error) {
	w.watcher.RequestProgress()
	return w.Next(ctx)
}

// Next waits for changes and returns those the client sees, and the revision up to which it has now seen
// everything. It returns no events when nothing but the revision moved.
func (w *Watch) Next(ctx context.Context) ([]WatchEvent, int64, error) {
	changes, revision, err := w.watcher.Next(ctx)
	if err != nil {
		return nil, 0, watchError(err, w.target, w.watcher.Revision(), w.watcher.Oldest())
	}
	var events []WatchEvent
	for i := range changes {
		kind, ok, err := w.classify(&changes[i])
		if err != nil {
			return nil, 0, apierrors.NewInternalError(err)
		}
		if ok {
			events = append(events, WatchEvent{Type: kind, Event: &changes[i]})
		}
	}
	return events, revision, nil
}

// sight tells how a change looks through the client's selectors.
func (w *Watch) classify(change *watchcache.Event) (watch.EventType, bool, error) {
	if change.Type == watchcache.Deleted {
		was, err := w.selected(change.Previous)
		return watch.Deleted, was, err
	}
	is, err := w.selected(change.Entry)
	if err != nil {
		return "", false, err
	}
	was, err := w.selected(change.Previous)
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

// watchError explains why a watch cannot start or continue after a revision, where events after the oldest are held.
// kube-apiserver does not cache resources with a TTL, so their error text is etcd3's.
func watchError(err error, t Target, after, oldest int64) error {
	switch {
	case !errors.Is(err, watchcache.ErrExpired):
		return status(err, t)
	case t.TimeToLive != nil:
		return apierrors.NewResourceExpired("The resourceVersion for the provided watch is too old.")
	}
	return tooOld(after, oldest)
}

func tooOld(revision, oldest int64) error {
	return apierrors.NewResourceExpired(fmt.Sprintf("too old resource version: %d (%d)", revision, oldest))
}
