package registry

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"

	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// computed returns entries of objects that are computed on each read. They have no revision.
func (r *Registry) computed(ctx context.Context, t Target) ([]*watchcache.Entry, error) {
	objects, err := t.Endpoint.Compute(ctx, t.Name)
	if err != nil {
		return nil, err
	}
	cache := r.cache(t.Match)
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
		entries = append(entries, cache.Detached(storage.Value{Path: t.named(accessor.GetName()).path(), Data: encoded}))
	}
	return entries, nil
}

// listComputed returns the selected computed objects. Limit and Continue are ignored.
func (r *Registry) listComputed(ctx context.Context, t Target, selection Selection) (*List, error) {
	entries, err := r.computed(ctx, t.named(""))
	if err != nil {
		return nil, err
	}
	page := &List{Entries: make([]*watchcache.Entry, 0, len(entries))}
	for _, entry := range entries {
		selected, err := selection.matches(ctx, t, entry)
		if err != nil {
			return nil, apierrors.NewInternalError(err)
		}
		if selected {
			page.Entries = append(page.Entries, entry)
		}
	}
	return page, nil
}
