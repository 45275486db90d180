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

// Get returns an object's entry. resourceVersion is the client's: "" for a consistent read, "0" for any cached state,
// otherwise for a state not older than that revision.
func (r *Registry) Get(ctx context.Context, t Target, resourceVersion string) (*watchcache.Entry, error) {
	if t.Endpoint.Compute != nil {
		entries, err := r.computed(ctx, t)
		if err != nil {
			return nil, err
		}
		return entries[0], nil
	}
	entry, err := r.get(ctx, t, resourceVersion)
	var malformed *field.Error
	if (t.TimeToLive != nil || r.bypassesCache(t)) && errors.As(err, &malformed) {
		// kube-apiserver does not cache resources with a TTL, so the error text is etcd3's.
		err = apierrors.NewBadRequest("invalid resource version: " + malformed.Error())
	}
	return entry, err
}

// get is Get of an object that is stored. A malformed resourceVersion is a *field.Error.
func (r *Registry) get(ctx context.Context, t Target, resourceVersion string) (*watchcache.Entry, error) {
	if r.delegates(t) {
		return r.getAtLeast(ctx, t, resourceVersion)
	}
	snapshot, err := r.snapshot(ctx, t, resourceVersion)
	if errors.Is(err, watchcache.ErrTooNew) {
		return r.getStored(ctx, t)
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

// getStored reads an object from storage, for consistent reads while the cache lags.
func (r *Registry) getStored(ctx context.Context, t Target) (*watchcache.Entry, error) {
	value, err := r.storageOf(t.Match).Store.Get(ctx, t.path())
	if err != nil {
		return nil, r.readError(err, t)
	}
	return r.cache(t.Match).Detached(value), nil
}

// snapshot returns a state of the collection that is not older than resourceVersion. If the resource's definition
// changes meanwhile and its cache is dropped, it continues with the new cache. It fails with ErrTooNew if the cache
// does not catch up with a consistent read in time.
func (r *Registry) snapshot(ctx context.Context, t Target, resourceVersion string) (*watchcache.Snapshot, error) {
	for {
		snapshot, err := r.snapshotOnce(ctx, t, resourceVersion)
		if again, err := r.dropped(t, err); !again || ctx.Err() != nil {
			return snapshot, err
		}
	}
}

// dropped reports whether an error means that the cache was dropped and the request should use its successor. If the
// resource is no longer served, there is none, and the error becomes the client's.
func (r *Registry) dropped(t Target, err error) (again bool, _ error) {
	if !errors.Is(err, watchcache.ErrDropped) {
		return false, err
	}
	if _, served := r.currentMatch(t.Match); served {
		return true, err
	}
	return false, notServed(t)
}

// snapshotOnce is snapshot for the cache of this moment; it fails with ErrDropped.
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
		return nil, tooLarge(revision, r.storageOf(t.Match).Caches.Revision())
	}
	return snapshot, status(err, t)
}

// parseRevision parses a client's resourceVersion option. The error is a *field.Error.
func parseRevision(resourceVersion string) (int64, error) {
	revision, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0, field.Invalid(field.NewPath("resourceVersion"), resourceVersion, err.Error())
	}
	return int64(min(revision, math.MaxInt64)), nil
}
