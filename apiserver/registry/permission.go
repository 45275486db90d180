package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// create stores bytes under a new path. That of a custom resource is stored only while its definition permits: one that
// is stored after the definition's finalizer has listed them all would stay for ever.
func (r *Registry) create(ctx context.Context, t Target, data []byte, ttl time.Duration) (int64, error) {
	store := r.storageOf(t.Match).Store
	if t.Permission == nil {
		return store.Create(ctx, t.path(), data, ttl)
	}
	definition, err := r.definitionPath(t)
	if err != nil {
		return 0, err
	}
	at := t.Permission.Revision()
	for {
		if at > 0 {
			revision, err := store.CreateGuarded(ctx, t.path(), data, storage.Guard{Path: definition, Revision: at})
			if !errors.Is(err, storage.ErrGuard) || ctx.Err() != nil {
				return revision, err
			}
		}
		if at, err = r.permitted(ctx, t); err != nil {
			return 0, err
		}
	}
}

// definitionPath returns the storage path of the definition of a custom resource.
func (r *Registry) definitionPath(t Target) (string, error) {
	key := t.Permission.Key()
	definitions, ok := r.catalog.Current().Find(key.GroupResource)
	if !ok {
		return "", notServed(t)
	}
	return definitions.StoragePath + "/" + key.Name, nil
}

// permitted returns the revision of the stored definition of a custom resource if it permits the creation of objects.
func (r *Registry) permitted(ctx context.Context, t Target) (int64, error) {
	definition, err := r.Client().Get(ctx, t.Permission.Key(), resource.ReadOptions{})
	if apierrors.IsNotFound(err) {
		return 0, notServed(t)
	}
	if err != nil {
		return 0, fmt.Errorf("get the definition of %s: %w", t.GroupResource(), err)
	}
	revision, err := t.Permission.Check(definition)
	switch {
	case errors.Is(err, resource.ErrTerminating):
		return 0, terminating(t)
	case errors.Is(err, resource.ErrNotServed):
		return 0, notServed(t)
	}
	return revision, err
}

// terminating is the error for the creation of a custom resource whose definition is being deleted.
func terminating(t Target) error {
	return apierrors.NewForbidden(t.GroupResource(), t.Name, resource.ErrTerminating)
}
