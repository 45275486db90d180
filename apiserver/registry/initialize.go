package registry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// initializationWait is the time that lists and watches wait for a watch cache that is being initialized.
// kube-apiserver reads all collections before it is ready. Here the first request for a collection starts the read,
// which usually takes much less time than that.
const initializationWait = 3 * time.Second

// awaitInitialized waits for the watch cache of a collection. It refuses requests of clients with code 429 if that
// takes longer than initializationWait, so that they do not pile up; see KEP-4568. Requests for resources with a TTL
// are not refused, because kube-apiserver does not cache them.
func (r *Registry) awaitInitialized(ctx context.Context, t resource.Target) error {
	if r.bypassesCache(t) || t.Internal || t.TimeToLive != nil {
		return nil
	}
	return r.Cache(t.Match).AwaitInitialized(ctx, initializationWait)
}

// hasUnreadable reports whether a cache cannot be initialized because a value cannot be read. Consistent lists then
// fail with the store's error, which names all such objects. kube-apiserver does so as long as it has a stale cache,
// and responds with 429 after its next start.
func hasUnreadable(err error) bool {
	var unready *watchcache.InitializingError
	return errors.As(err, &unready) && unready.Unreadable != nil
}

// delegates reports whether a GET, or a list at an exact revision, is served from storage because there is no watch
// cache or it is being initialized. It starts the initialization of a cache that has not been used yet.
func (r *Registry) delegates(t resource.Target) bool {
	return r.bypassesCache(t) || r.Cache(t.Match).Initializing()
}

// delegatesList reports whether a list is served from storage because its watch cache is being initialized. As in
// kube-apiserver, only pages without selectors are: others would read whole collections.
func (l *listing) delegatesList() bool { return l.mayDelegate() && l.registry.delegates(l.target) }

// mayDelegate reports whether kube-apiserver reads a list from storage while its cache is not initialized.
func (l *listing) mayDelegate() bool {
	return (l.options.Limit > 0 || l.options.deletion) && l.options.Everything() && l.options.Continue == ""
}

// getAtLeast reads an object from storage at a revision that is not less than the client's. It mirrors Get of etcd3
// with validateMinimumResourceVersion: the revision of the client is compared with the current revision of etcd, which
// need not be a revision of this object.
func (r *Registry) getAtLeast(
	ctx context.Context, t resource.Target, resourceVersion string,
) (*watchcache.Entry, error) {
	if resourceVersion == "" || resourceVersion == "0" {
		return r.getStored(ctx, t)
	}
	revision, err := parseRevision(resourceVersion)
	if err != nil {
		return nil, err
	}
	current, err := r.storageOf(t.Match).Caches.Current(ctx)
	if err != nil {
		return nil, status(err, t)
	}
	if revision > current && r.bypassesCache(t) {
		return nil, tooLargeFor(0, revision, current)
	}
	if revision > current {
		return nil, tooLarge(revision, current)
	}
	return r.getStored(ctx, t)
}

// initializing is the error for a request whose watch cache is being initialized. Its Retry-After grows with the
// downtime like kube-apiserver's calculateRetryAfterForUnreadyCache.
func initializing(err *watchcache.InitializingError, t resource.Target) error {
	const factor, least, most = 0.06, 1, 30
	seconds := min(most, max(least, math.Exp(factor*err.Downtime.Seconds())))
	message := err.Error()
	if err.Unreadable != nil {
		message += fmt.Sprintf(": failed to list %s: %v", typeDescription(t), err.Unreadable)
	}
	return apierrors.NewTooManyRequests(message, int(seconds))
}

// typeDescription returns the name of a type in the errors of client-go's reflectors, which fill kube-apiserver's
// caches.
func typeDescription(t resource.Target) string {
	if t.Storage != nil { // custom
		return schema.GroupVersionKind{Group: t.Group, Version: t.Version.Name, Kind: t.Kind}.String()
	}
	return fmt.Sprintf("%T", t.Version.Codec.New())
}
