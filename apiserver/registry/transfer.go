package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/api/validation/path"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

var errNotTransferring = errors.New("objects are imported only while their CustomResourceDefinition is transferred")

// Import stores an object as it is, with the UID, generation, timestamps, managed fields and status that another
// cluster has given it. It replaces a stored object of the same UID, and refuses to replace an object of another UID.
//
// Import runs neither admission nor the strategy, and neither validates the object with the schema nor applies the soft
// quota. Therefore it accepts only objects of a definition that is being transferred, and package transfer authorizes
// the request. A repeated Import of the same object writes nothing. A concurrent write is a conflict, which is not
// retried.
func (r *Registry) Import(ctx context.Context, t resource.Target, object runtime.Object) (*Result, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	if !t.Transferring {
		return nil, apierrors.NewForbidden(t.GroupResource(), t.Name, errNotTransferring)
	}
	if err := validateImported(t, accessor); err != nil {
		return nil, err
	}
	data, err := encode(ctx, t, object)
	if err != nil {
		return nil, internalError(err)
	}
	current, err := r.storedState(ctx, t)
	if err != nil {
		return nil, status(err, t)
	}
	result := &Result{Outcome: Updated, Object: object, Stored: data}
	switch store := r.storageOf(t.Match).Store; {
	case !current.found:
		result.Outcome = Created
		result.Revision, err = r.create(ctx, t, nil, data, 0)
	case bytes.Equal(current.data, data):
		result.Revision = current.revision
	default:
		if err := matchesUID(ctx, t, current, accessor.GetUID()); err != nil {
			return nil, err
		}
		result.Revision, err = store.Update(ctx, t.Path(), current.revision, data, 0)
	}
	if err != nil {
		return nil, status(err, t)
	}
	setRevision(object, result.Revision)
	return result, nil
}

// validateImported checks the metadata. The rest may be invalid: stored objects stay when a schema becomes stricter.
func validateImported(t resource.Target, accessor metav1.Object) error {
	errs := validation.ValidateObjectMetaAccessor(accessor, t.Namespaced,
		path.ValidatePathSegmentName, field.NewPath("metadata"))
	if accessor.GetUID() == "" {
		errs = append(errs, field.Required(field.NewPath("metadata", "uid"), "an imported object has the UID of its origin"))
	}
	if created := accessor.GetCreationTimestamp(); created.IsZero() {
		errs = append(errs, field.Required(field.NewPath("metadata", "creationTimestamp"), ""))
	}
	if len(errs) > 0 {
		return request.Invalid(schema.GroupKind{Group: t.Group, Kind: t.Kind}, t.Name, errs)
	}
	return nil
}

// matchesUID returns a conflict if the stored object has another UID.
func matchesUID(ctx context.Context, t resource.Target, current state, uid types.UID) error {
	stored, err := load(ctx, t, current)
	if err != nil {
		return err
	}
	accessor, err := meta.Accessor(stored)
	if err != nil {
		return internalError(err)
	}
	if uid != accessor.GetUID() {
		return apierrors.NewConflict(t.GroupResource(), t.Name,
			fmt.Errorf("UID %s differs from that of the stored object, %s",
				uid, accessor.GetUID()))
	}
	return nil
}

// Expunge deletes an object that has been moved to another cluster: without admission and regardless of its finalizers,
// because the object, and what its finalizers protect, lives on in the other cluster. The preconditions must have a
// UID, so that an object which was created under the name since is not deleted.
func (r *Registry) Expunge(ctx context.Context, t resource.Target, preconditions *metav1.Preconditions) error {
	if !t.Transferring {
		return apierrors.NewForbidden(t.GroupResource(), t.Name, errNotTransferring)
	}
	if preconditions == nil || preconditions.UID == nil {
		return apierrors.NewBadRequest("preconditions.uid is required")
	}
	current, err := r.storedState(ctx, t)
	switch {
	case err != nil:
		return status(err, t)
	case !current.found:
		return status(storage.ErrNotFound, t)
	}
	if err := matchesUID(ctx, t, current, *preconditions.UID); err != nil {
		return err
	}
	if wanted := preconditions.ResourceVersion; wanted != nil && *wanted != fmt.Sprint(current.revision) {
		return status(&storage.ConflictError{}, t)
	}
	_, err = r.storageOf(t.Match).Store.Delete(ctx, t.Path(), current.revision)
	return status(err, t)
}
