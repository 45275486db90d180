package registry

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// dependency is a path that a creation depends on, with the revision at which the creation is known to be permitted; 0:
// no such revision is known.
type dependency struct {
	storage.Guard
	// permitted reads the path, and returns its revision if it permits the creation, or the error for the client.
	permitted func(context.Context) (revision int64, err error)
}

// create stores the bytes of an admitted object under a new path; admitted is nil for an object that is transferred. A
// custom resource is stored only while its definition permits the creation of objects, and an object in a namespace
// only while the namespace is active: an object that is stored after the definition's finalizer, or the namespace's
// controller, has listed all objects would never be deleted. Admission has checked the namespace before, but its cache
// may lag, and etcd may apply the creation many seconds later. See dependencies for the exceptions.
//
// The conditions are part of the transaction: the definition and the namespace must still have the revisions at which
// they are known to permit the creation. These revisions usually are the current ones, and the creation costs one
// request to etcd. If the definition or the namespace has been written since, for example its status or a label, the
// transaction fails; the server then reads both from etcd and tries again. kube-apiserver has no such conditions:
// forbidCreateAdmission and NamespaceLifecycle check the definition and the namespace only at admission.
func (r *Registry) create(
	ctx context.Context, t resource.Target, admitted *admission.Attributes, data []byte, ttl time.Duration,
) (int64, error) {
	store := r.storageOf(t.Match).Store
	dependencies, err := r.dependencies(t, admitted)
	if err != nil {
		return 0, err
	}
	if len(dependencies) == 0 {
		return store.Create(ctx, t.Path(), data, ttl)
	}
	for {
		guards := make([]storage.Guard, len(dependencies))
		for i, d := range dependencies {
			if d.Revision == 0 {
				if d.Revision, err = d.permitted(ctx); err != nil {
					return 0, err
				}
			}
			guards[i], dependencies[i].Revision = d.Guard, 0
		}
		revision, err := store.CreateGuarded(ctx, t.Path(), data, ttl, guards...)
		if !errors.Is(err, storage.ErrGuard) || errors.Is(err, storage.ErrUncertain) {
			return revision, err
		}
	}
}

// dependencies returns the paths on which the creation of an object depends: the definition of a custom resource, and
// the namespace that NamespaceLifecycle found active. It omits the namespace if another etcd stores it, or if the store
// cannot check it in the same transaction.
func (r *Registry) dependencies(t resource.Target, admitted *admission.Attributes) ([]dependency, error) {
	var all []dependency
	if t.Permission != nil {
		definition, err := r.definitionPath(t)
		if err != nil {
			return nil, err
		}
		all = append(all, dependency{
			Guard:     storage.Guard{Path: definition, Revision: t.Permission.Revision()},
			permitted: func(ctx context.Context) (int64, error) { return r.permitted(ctx, t) },
		})
	}
	if admitted == nil || admitted.NamespaceRevision == 0 {
		return all, nil
	}
	namespace, err := r.Target(resource.Key{GroupResource: namespaces, Name: t.Namespace})
	if err != nil {
		return nil, err
	}
	store := r.storageOf(t.Match).Store
	if r.storageOf(namespace.Match).Store != store || !store.GuardsAreAtomic() {
		return all, nil
	}
	return append(all, dependency{
		Guard:     storage.Guard{Path: namespace.Path(), Revision: admitted.NamespaceRevision},
		permitted: func(ctx context.Context) (int64, error) { return r.activeAt(ctx, namespace, admitted) },
	}), nil
}

// activeAt returns the revision of the stored namespace of a creation if the namespace is active, and records it for
// the next attempt, for example with another generated name.
func (r *Registry) activeAt(
	ctx context.Context, namespace resource.Target, admitted *admission.Attributes,
) (int64, error) {
	stored, err := r.ReadStored(ctx, namespace)
	if err != nil {
		return 0, err
	}
	accessor, err := meta.Accessor(stored)
	if err != nil {
		return 0, err
	}
	if accessor.GetDeletionTimestamp() != nil {
		return 0, admission.NewNamespaceTerminatingError(admitted)
	}
	admitted.NamespaceRevision, err = strconv.ParseInt(accessor.GetResourceVersion(), 10, 64)
	return admitted.NamespaceRevision, err
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
