package registry

import (
	"context"
	"errors"
	"math"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// Get returns an object's entry. resourceVersion is the client's: "" for a consistent read, "0" for any cached state,
// otherwise for a state not older than that revision.
func (r *Registry) Get(ctx context.Context, t resource.Target, resourceVersion string) (*watchcache.Entry, error) {
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

// get is Get of an object that is stored. For a malformed resourceVersion it returns a *field.Error.
func (r *Registry) get(ctx context.Context, t resource.Target, resourceVersion string) (*watchcache.Entry, error) {
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
	entry, ok := snapshot.Get(t.Path())
	if !ok {
		return nil, apierrors.NewNotFound(t.GroupResource(), t.Name)
	}
	return entry, nil
}

// getStored reads an object from storage, for resources without a cache and for consistent reads while the cache lags.
// The entry belongs to the caller alone: other requests for the object read and encode it again.
func (r *Registry) getStored(ctx context.Context, t resource.Target) (*watchcache.Entry, error) {
	value, err := r.storageOf(t.Match).Store.Get(ctx, t.Path())
	if err != nil {
		return nil, r.readError(err, t)
	}
	return r.Cache(t.Match).Detached(value), nil
}

// ReadStored reads an object from storage and decodes it as clients see it. It costs one request to etcd, and does not
// wait for the watch cache.
func (r *Registry) ReadStored(ctx context.Context, t resource.Target) (runtime.Object, error) {
	current, err := r.storedState(ctx, t)
	if err != nil {
		return nil, status(err, t)
	}
	if !current.found {
		return nil, apierrors.NewNotFound(t.GroupResource(), t.Name)
	}
	return visibleState(ctx, t, current, false)
}

// Revision returns a revision that is not older than any change of the resource that was stored before the call.
// Concurrent callers share one read from etcd. With an etcd too old for progress requests, it is the revision of the
// watch cache.
func (r *Registry) Revision(ctx context.Context, t resource.Target) (int64, error) {
	cache := r.Cache(t.Match)
	var snapshot *watchcache.Snapshot
	var err error
	if r.storageOf(t.Match).Store.SupportsProgress() {
		snapshot, err = cache.Latest(ctx)
	} else {
		snapshot, err = cache.Snapshot(ctx, 0)
	}
	if err != nil {
		return 0, status(err, t)
	}
	return snapshot.Revision(), nil
}

// snapshot returns a state of the collection that is not older than resourceVersion. If the definition of the resource
// changes during the wait, so that its cache is dropped, snapshot continues with the new cache. It fails with ErrTooNew
// if the cache does not catch up with a consistent read in time; the caller then reads storage.
func (r *Registry) snapshot(
	ctx context.Context, t resource.Target, resourceVersion string,
) (*watchcache.Snapshot, error) {
	for {
		snapshot, err := r.snapshotOnce(ctx, t, resourceVersion)
		if again, err := r.dropped(t, err); !again || ctx.Err() != nil {
			return snapshot, err
		}
	}
}

// dropped reports whether an error means that the cache was dropped and the request should use the cache of the new
// definition. If the resource is no longer served, dropped returns the error for the client.
func (r *Registry) dropped(t resource.Target, err error) (again bool, _ error) {
	if !errors.Is(err, watchcache.ErrDropped) {
		return false, err
	}
	if _, served := r.currentMatch(t.Match); served {
		return true, err
	}
	return false, notServed(t)
}

// snapshotOnce is snapshot without the repetition: it fails with ErrDropped if the cache is dropped during the wait. A
// revision in the future is an error of the client, which may have it from another etcd; only a consistent read returns
// ErrTooNew.
func (r *Registry) snapshotOnce(
	ctx context.Context, t resource.Target, resourceVersion string,
) (*watchcache.Snapshot, error) {
	cache := r.Cache(t.Match)
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

// parseRevision parses a client's resourceVersion option, an unsigned number as in storage.APIObjectVersioner. The
// error is a *field.Error. Numbers above the largest revision of etcd become that revision, which is in the future.
func parseRevision(resourceVersion string) (int64, error) {
	revision, err := strconv.ParseUint(resourceVersion, 10, 64)
	if err != nil {
		return 0, field.Invalid(field.NewPath("resourceVersion"), resourceVersion, err.Error())
	}
	return int64(min(revision, math.MaxInt64)), nil
}
