package registry

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// create stores the bytes of an object under a new path. A custom resource is stored only while its definition permits
// the creation of objects: an object that is stored after the definition's finalizer has listed all objects would never
// be deleted.
//
// The condition is part of the transaction: the definition must still have the revision at which it is known to permit
// creation. The known revision (Permission.Revision) usually is the current one, and the creation costs one request to
// etcd. After any write to the definition, for example of its status, creations first read the definition until this
// server has observed the write. kube-apiserver has no such condition: its forbidCreateAdmission only checks the
// informer's state.
func (r *Registry) create(ctx context.Context, t resource.Target, data []byte, ttl time.Duration) (int64, error) {
	store := r.storageOf(t.Match).Store
	if t.Permission == nil {
		return store.Create(ctx, t.Path(), data, ttl)
	}
	definition, err := r.definitionPath(t)
	if err != nil {
		return 0, err
	}
	at := t.Permission.Revision()
	for {
		if at > 0 {
			revision, err := store.CreateGuarded(ctx, t.Path(), data, storage.Guard{Path: definition, Revision: at})
			if !errors.Is(err, storage.ErrGuard) || ctx.Err() != nil {
				return revision, err
			}
		}
		if at, err = r.permitted(ctx, t); err != nil {
			return 0, err
		}
	}
}

// definitionPath returns the storage path of the definition of a custom resource, on which its creation depends.
func (r *Registry) definitionPath(t resource.Target) (string, error) {
	key := t.Permission.Key()
	definitions, ok := r.catalog.Current().Find(key.GroupResource)
	if !ok {
		return "", notServed(t)
	}
	return definitions.StoragePath + "/" + key.Name, nil
}

// storedDefinition reads the definition of a custom resource from storage.
func (r *Registry) storedDefinition(ctx context.Context, t resource.Target) (runtime.Object, error) {
	definition, err := r.Target(t.Permission.Key())
	if err != nil {
		return nil, err
	}
	return r.ReadStored(ctx, definition)
}

// permitted returns the revision of the stored definition of a custom resource if it permits the creation of objects.
func (r *Registry) permitted(ctx context.Context, t resource.Target) (int64, error) {
	definition, err := r.storedDefinition(ctx, t)
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
func terminating(t resource.Target) error {
	return apierrors.NewForbidden(t.GroupResource(), t.Name, resource.ErrTerminating)
}
