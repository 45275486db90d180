package registry

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// state is an object as read from the watch cache or from storage. It corresponds to objState of etcd3, with fresh for
// origStateIsCurrent of GuaranteedUpdate.
type state struct {
	data     []byte // decrypted; must not be changed, because the watch cache and other requests share it
	revision int64  // etcd's ModRevision, on which the commit depends; 0 if the object is not found
	found    bool
	// entry is the entry of the watch cache that the state was read from; nil for a state from storage. The entry may
	// already have the object as a conversion webhook has converted it.
	entry *watchcache.Entry
	// fresh is set if the state was read from storage for this request. Invariant: a state that is not found is
	// fresh, because a miss in the cache is verified.
	fresh bool
	// stale is storage.Value.Stale, known for fresh states only: the value in etcd is encrypted with a former key, so that
	// a write with equal bytes still has an effect.
	stale bool
}

// writer is an update or a deletion that can be attempted repeatedly. Its methods are not called concurrently.
type writer interface {
	// attempt writes once, starting from current. It must derive everything that it writes from current, and commit on the
	// condition that the stored revision is the revision of current.
	attempt(ctx context.Context, current state) (*Result, error)
	// rewrite is called instead of another attempt if the latest attempt has written nothing, because the object is
	// unchanged, and the stored value turns out to be stale. result is the result of that attempt. rewrite encrypts the
	// same object again, without a second round of admission.
	rewrite(ctx context.Context, current state, result *Result) (*Result, error)
}

// retry runs attempts until one succeeds. It starts from the cached state, so that a write without contention reads
// nothing from etcd. An attempt that fails or writes nothing may do so because the cached state is stale; it counts
// only if its state was fresh or turns out to be the stored one, so that webhooks are not called twice. After a
// conflict, the next attempt starts from the state that the failed transaction returned. An attempt whose outcome is
// unknown is the last one, because the stored state may already be its own.
//
// The loop mirrors GuaranteedUpdate of etcd3, which the Cacher also gives the cached object to start from. Admission is
// part of each attempt, because the object that it admits was computed from the state that it replaces.
func (r *Registry) retry(ctx context.Context, t resource.Target, dryRun bool, w writer) (*Result, error) {
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
		case errors.Is(err, storage.ErrUncertain): // another attempt could apply the same change twice
			return nil, status(err, t)
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

// initialState returns the state of the first attempt: the state in the watch cache, except in three cases. Resources
// without a cache are read from storage. A dry run has no transaction that would detect a stale state. A write that
// allocates, such as a change of a Service, must not allocate for a state that turns out to be stale.
func (r *Registry) initialState(ctx context.Context, t resource.Target, dryRun bool) (state, error) {
	if dryRun || r.uncached.has(t.Definition) || r.admission.Allocates(t.GroupResource()) {
		return r.storedState(ctx, t)
	}
	return r.cachedState(ctx, t)
}

// cachedState returns the object in the watch cache, or the stored object if the cache does not have it or is not
// ready. It accepts any cached state and waits for no revision.
func (r *Registry) cachedState(ctx context.Context, t resource.Target) (state, error) {
	cache := r.Cache(t.Match)
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
	entry, ok := snapshot.Get(t.Path())
	if !ok {
		return r.storedState(ctx, t)
	}
	return stateOf(entry), nil
}

// stateOf returns the state that an entry holds. It is not fresh: the entry may have been replaced in storage.
func stateOf(entry *watchcache.Entry) state {
	return state{data: entry.Stored(), revision: entry.Revision(), found: true, entry: entry}
}

// storedState reads the object from etcd. An object that does not exist is a state, not an error: an update may create
// it.
func (r *Registry) storedState(ctx context.Context, t resource.Target) (state, error) {
	value, err := r.storageOf(t.Match).Store.Get(ctx, t.Path())
	if errors.Is(err, storage.ErrNotFound) {
		return state{fresh: true}, nil
	}
	return state{data: value.Data, revision: value.Revision, found: err == nil, fresh: true, stale: value.Stale}, err
}

// conflictState returns the state that a failed transaction has read in its else branch. It is fresh, and saves the
// next attempt a request to etcd.
func conflictState(conflict *storage.ConflictError) state {
	current := conflict.Current
	return state{data: current.Data, revision: current.Revision, found: conflict.Found, fresh: true, stale: current.Stale}
}

// isGone reports whether a write failed because the object no longer exists.
func isGone(err error) bool {
	var conflict *storage.ConflictError
	return errors.As(err, &conflict) && !conflict.Found
}

// load decodes a state into the internal version, which the caller owns. It calls a conversion webhook if the object is
// stored in another version than the target's; a state from the watch cache shares that call with other readers.
func load(ctx context.Context, t resource.Target, current state) (object runtime.Object, err error) {
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

// visibleState decodes a state as clients see it: with the fields that Definition.Decorate completes, unless
// undecorated is set or the endpoint shows objects as they are stored.
func visibleState(ctx context.Context, t resource.Target, current state, undecorated bool) (runtime.Object, error) {
	internal, err := load(ctx, t, current)
	if err == nil && t.Decorate != nil && !undecorated && !t.Endpoint.Undecorated {
		t.Decorate(internal)
	}
	return internal, err
}

// encode returns the bytes to store. Stored objects have no resourceVersion, which is etcd's ModRevision: like
// Versioner.PrepareObjectForStorage, encode removes it. The object is the same afterwards, but must not be used by
// another goroutine during the call.
func encode(ctx context.Context, t resource.Target, object runtime.Object) ([]byte, error) {
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

// encodeUnmanaged removes the managed fields of an object that storage has refused because of its size, and encodes it
// again: they may be most of the object.
func encodeUnmanaged(ctx context.Context, t resource.Target, object runtime.Object) ([]byte, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	accessor.SetManagedFields(nil)
	return encode(ctx, t, object)
}

// retryWithoutManagedFields reports whether an object that storage has refused as too large is stored without its
// managed fields. It mirrors isTooLargeError in kube-apiserver's handlers, which repeat the whole request instead of
// the encoding.
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
