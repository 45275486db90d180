package registry

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// state is an object as read from the watch cache or from storage.
type state struct {
	data     []byte
	revision int64
	found    bool
	// entry is the one that the state was read from, which may know how a webhook converted it; nil: none.
	entry *watchcache.Entry
	// fresh is set if the state was read from storage for this request. Invariant: a state that is not found is
	// fresh, because a miss in the cache is verified.
	fresh bool
	// stale is storage.Value.Stale, known for fresh states only.
	stale bool
}

// writer is an update or a deletion that can be attempted repeatedly.
type writer interface {
	// attempt writes once, starting from current. It must derive everything that it writes from current.
	attempt(ctx context.Context, current state) (*Result, error)
	// rewrite is called instead of another attempt if the latest one changed nothing but current, which it started from,
	// is stale.
	rewrite(ctx context.Context, current state, result *Result) (*Result, error)
}

// retry runs attempts until one succeeds. It starts from the cached state, so that a write without contention reads
// nothing from etcd. An attempt that fails or writes nothing may do so because the cached state is stale; it counts
// only if its state was fresh or turns out to be the stored one, so that webhooks are not called twice. After a conflict,
// the next attempt starts from the state that the failed transaction returned.
func (r *Registry) retry(ctx context.Context, t Target, dryRun bool, w writer) (*Result, error) {
	current, err := r.initialState(ctx, t, dryRun)
	if err != nil {
		return nil, status(err, t)
	}
	for {
		result, err := w.attempt(ctx, current)
		var conflict *storage.ConflictError
		switch {
		case err == nil && (current.fresh || !result.Outcome.wroteNothing()):
			return result, nil
		case errors.As(err, &conflict):
			current = conflictState(conflict)
		case current.fresh && !errors.Is(err, storage.ErrExists): // ErrExists: a concurrent request created the object
			return nil, status(err, t)
		default:
			stored, readErr := r.storedState(ctx, t)
			if readErr != nil {
				return nil, status(readErr, t)
			}
			if current.fresh || !stored.found || stored.revision != current.revision {
				current = stored
				break
			}
			if err == nil && stored.stale {
				result, err = w.rewrite(ctx, stored, result)
			}
			if !errors.As(err, &conflict) {
				return result, status(err, t)
			}
			current = conflictState(conflict)
		}
		if ctx.Err() != nil {
			return nil, status(ctx.Err(), t)
		}
	}
}

// initialState returns the state of the first attempt. Resources without a cache are read from storage. A dry run has no transaction that would detect a stale state, and
// a write that allocates must not allocate for a state that turns out to be stale.
func (r *Registry) initialState(ctx context.Context, t Target, dryRun bool) (state, error) {
	if dryRun || r.uncached.has(t.Definition) || r.admission.Allocates(t.GroupResource()) {
		return r.storedState(ctx, t)
	}
	return r.cachedState(ctx, t)
}

// cachedState returns the object in the watch cache, or the stored one if the cache has none.
func (r *Registry) cachedState(ctx context.Context, t Target) (state, error) {
	cache := r.cache(t.Match)
	if cache.Initializing() {
		return r.storedState(ctx, t)
	}
	snapshot, err := cache.Snapshot(ctx, 0)
	if errors.Is(err, watchcache.ErrTooNew) || errors.Is(err, watchcache.ErrDropped) {
		return r.storedState(ctx, t)
	}
	if err != nil {
		return state{}, err
	}
	entry, ok := snapshot.Get(t.path())
	if !ok {
		return r.storedState(ctx, t)
	}
	return stateOf(entry), nil
}

func stateOf(entry *watchcache.Entry) state {
	return state{data: entry.Stored(), revision: entry.Revision(), found: true, entry: entry}
}

func (r *Registry) storedState(ctx context.Context, t Target) (state, error) {
	value, err := r.storageOf(t.Match).Store.Get(ctx, t.path())
	if errors.Is(err, storage.ErrNotFound) {
		return state{fresh: true}, nil
	}
	return state{data: value.Data, revision: value.Revision, found: err == nil, fresh: true, stale: value.Stale}, err
}

func conflictState(conflict *storage.ConflictError) state {
	current := conflict.Current
	return state{data: current.Data, revision: current.Revision, found: conflict.Found, fresh: true, stale: current.Stale}
}

// isGone reports whether a write failed because the object no longer exists.
func isGone(err error) bool {
	var conflict *storage.ConflictError
	return errors.As(err, &conflict) && !conflict.Found
}

// load decodes a state into the internal version.
func load(ctx context.Context, t Target, current state) (object runtime.Object, err error) {
	if current.entry != nil && t.Version.Codec.Remote(current.data) {
		object, err = current.entry.Object(ctx, t.Match)
	} else {
		object, err = t.Version.Codec.Load(ctx, current.data)
	}
	if err != nil {
		return nil, internalError(err)
	}
	if current.revision > 0 { // a dry run has none, and may keep the client's
		setRevision(object, current.revision)
	}
	return object, nil
}

// visibleState decodes a state as clients see it.
func visibleState(ctx context.Context, t Target, current state, undecorated bool) (runtime.Object, error) {
	internal, err := load(ctx, t, current)
	if err == nil && t.Decorate != nil && !undecorated && !t.Endpoint.Undecorated {
		t.Decorate(internal)
	}
	return internal, err
}

// encode makes the bytes to store. Stored objects have no resourceVersion: it is etcd's ModRevision.
func encode(ctx context.Context, t Target, object runtime.Object) ([]byte, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	revision := accessor.GetResourceVersion()
	accessor.SetResourceVersion("")
	data, err := t.Version.Codec.Store(ctx, object)
	accessor.SetResourceVersion(revision)
	return data, err
}

// encodeUnmanaged encodes an object that was too large to be stored without its managed fields, which may be most of
// it.
func encodeUnmanaged(ctx context.Context, t Target, object runtime.Object) ([]byte, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	accessor.SetManagedFields(nil)
	return encode(ctx, t, object)
}

// retryWithoutManagedFields reports whether an object that storage refused is stored without its managed fields.
func retryWithoutManagedFields(err error, options WriteOptions) bool {
	return errors.Is(err, storage.ErrTooLarge) && !options.applied
}

// setRevision sets the resourceVersion of an object; 0 leaves it empty.
func setRevision(object runtime.Object, revision int64) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	if revision == 0 {
		accessor.SetResourceVersion("")
		return
	}
	accessor.SetResourceVersion(fmt.Sprint(revision))
}
