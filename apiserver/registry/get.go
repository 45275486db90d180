package registry

import (
	"context"
	"errors"
	"math"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"quorate.dev/apiserver/watchcache"
)

// Get returns an object's entry. resourceVersion is the client's: "" asks for the state at this moment or later,
// "0" for whatever the cache has, anything else for at least that revision.
func (r *Registry) Get(ctx context.Context, t Target, resourceVersion string) (*watchcache.Entry, error) {
	if t.Endpoint.Compute != nil {
		entries, err := r.computed(ctx, t)
		if err != nil {
			return nil, err
		}
		return entries[0], nil
	}
	snapshot, err := r.snapshot(ctx, t, resourceVersion)
	if errors.Is(err, watchcache.ErrTooNew) {
		return r.readStored(ctx, t)
	}
	var malformed *field.Error
	if t.TimeToLive != nil && errors.As(err, &malformed) {
		// In kube-apiserver there is no cache before what expires, and its storage words this another way.
		err = apierrors.NewBadRequest("invalid resource version: " + malformed.Error())
	}
	if err != nil {
		return nil, err
	}
	entry, ok := snapshot.Get(t.path())
	if !ok {
		return nil, apierrors.NewNotFound(t.GroupResource(), t.Name)
	}
	return entry, nil
}

// readStored reads an object from storage, for clients that need its present state while the cache lags behind.
func (r *Registry) readStored(ctx context.Context, t Target) (*watchcache.Entry, error) {
	value, err := r.store.Get(ctx, t.path())
	if err != nil {
		return nil, status(err, t)
	}
	return r.cache(t.Match).Detached(value), nil
}

// snapshot returns a state of the collection that satisfies resourceVersion as "not older than". A cache that was
// dropped meanwhile, because the resource's definition changed, is replaced by a new one. It fails with ErrTooNew if the
// cache does not come in time to the state at this moment.
func (r *Registry) snapshot(ctx context.Context, t Target, resourceVersion string) (*watchcache.Snapshot, error) {
	for {
		snapshot, err := r.snapshotOnce(ctx, t, resourceVersion)
		if again, err := r.dropped(t, err); !again || ctx.Err() != nil {
			return snapshot, err
		}
	}
}

// dropped tells whether an error means that a cache was dropped and another has taken its place. Where none has, because
// the resource is not served any more, the error becomes what the client is told.
func (r *Registry) dropped(t Target, err error) (again bool, told error) {
	if !errors.Is(err, watchcache.ErrDropped) {
		return false, err
	}
	if _, served := r.currentMatch(t.Match); served {
		return true, err
	}
	return false, notServed(t)
}

// snapshotOnce returns a state of the collection that satisfies resourceVersion as "not older than".
func (r *Registry) snapshotOnce(ctx context.Context, t Target, resourceVersion string) (*watchcache.Snapshot, error) {
	cache := r.cache(t.Match)
	if resourceVersion == "" {
		snapshot, err := cache.Latest(ctx)
		return snapshot, status(err, t)
	}
	revision, err := parseRevision(resourceVersion)
	if err != nil {
		return nil, err
	}
	snapshot, err := cache.Snapshot(ctx, revision)
	if errors.Is(err, watchcache.ErrTooNew) {
		return nil, tooLarge(revision, r.caches.Revision())
	}
	return snapshot, status(err, t)
}

// parseRevision reads a client's resourceVersion. The error is a *field.Error.
func parseRevision(resourceVersion string) (int64, error) {
	revision, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0, field.Invalid(field.NewPath("resourceVersion"), resourceVersion, err.Error())
	}
	return int64(min(revision, math.MaxInt64)), nil
}
