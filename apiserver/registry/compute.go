package registry

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"quorate.dev/apiserver/registry/selection"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// computed returns entries of objects that are computed on each read (component statuses). The objects pass through the
// codec of stored objects, so that handlers serve them like all others. They have no revision and cannot be watched.
func (r *Registry) computed(ctx context.Context, t resource.Target) ([]*watchcache.Entry, error) {
	objects, err := t.Endpoint.Compute(ctx, t.Name)
	if err != nil {
		return nil, err
	}
	cache := r.Cache(t.Match)
	entries := make([]*watchcache.Entry, 0, len(objects))
	for _, object := range objects {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		encoded, err := t.Version.Codec.Store(ctx, object)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		entries = append(entries, cache.Detached(storage.Value{Path: t.Named(accessor.GetName()).Path(), Data: encoded}))
	}
	return entries, nil
}

// listComputed returns the selected computed objects. Limit and Continue are ignored. The list holds no memory budget.
func (r *Registry) listComputed(ctx context.Context, t resource.Target, selected Selection) (*List, error) {
	filter := selection.Filter{Selection: selected, Target: t.Named("")}
	entries, err := r.computed(ctx, filter.Target)
	if err != nil {
		return nil, err
	}
	page := &List{Entries: make([]*watchcache.Entry, 0, len(entries))}
	for _, entry := range entries {
		ok, err := filter.Selects(ctx, entry)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		if ok {
			page.Entries = append(page.Entries, entry)
		}
	}
	return page, nil
}
