package registry

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"quorate.dev/apiserver/registry/strategy"
	"quorate.dev/apiserver/resource"
)

// checkUID refuses a change that is meant for an earlier or later object of the same name. An object that does not
// exist has the UID "". The precondition comes from the body of a PUT (objInfo.Preconditions in Store.Update).
func (u *update) checkUID(actual types.UID) error {
	expected := u.change.UID()
	if expected == "" || expected == actual {
		return nil
	}
	precondition := resource.PreconditionError{What: "UID", Wanted: string(expected), Actual: string(actual)}
	return u.registry.StorageConflict(u.target, precondition.Error(), u.options.DryRun)
}

// StorageConflict returns the conflict that kube-apiserver's storage layer reports for a failed precondition, with the
// text of storage.NewInvalidObjError. In a dry run, the key has no prefix of the store, as in DryRunnableStorage.
func (r *Registry) StorageConflict(t resource.Target, message string, dryRun bool) error {
	key := r.storageOf(t.Match).Store.Key(t.Path())
	if dryRun {
		key = "/" + t.Path()
	}
	return apierrors.NewConflict(t.GroupResource(), t.Name, fmt.Errorf(
		"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %s", key, message))
}

// checkNewResourceVersion refuses to create an object that has a resourceVersion, like etcd3's Create, which a dry run
// of kube-apiserver does not reach. A malformed resourceVersion is ignored.
func checkNewResourceVersion(object runtime.Object, dryRun bool) error {
	accessor, err := meta.Accessor(object)
	if err != nil || dryRun {
		return err
	}
	revision, err := parseUpdateRevision(accessor.GetResourceVersion())
	if err == nil && revision != 0 {
		return errRevisionOnCreate
	}
	return nil
}

var errRevisionOnCreate = errors.New("resourceVersion should not be set on objects to be created")

// checkCreateByUpdate refuses a create by update whose object has a UID, because the client means an object that has
// been deleted. A valid resourceVersion is ignored.
func checkCreateByUpdate(t resource.Target, object runtime.Object) error {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil // admission reports it
	}
	if accessor.GetUID() != "" {
		return apierrors.NewConflict(t.GroupResource(), t.Name, fmt.Errorf(
			"uid mismatch: the provided object specified uid %s, and no existing object was found", accessor.GetUID()))
	}
	_, err = parseUpdateRevision(accessor.GetResourceVersion())
	return err
}

// checkRevision compares the resourceVersion of an update with the revision of the state that it replaces. An object
// without a resourceVersion asks for an unconditional update: it gets the current revision if the strategy permits
// that. An attempt that started from a stale state may fail here although the client's revision is current; retry then
// reads the stored state. It mirrors the checks of Store.Update.
func checkRevision(ctx context.Context, t resource.Target, object runtime.Object, current int64) error {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	revision, err := parseUpdateRevision(accessor.GetResourceVersion())
	if err != nil {
		return err
	}
	if revision == 0 {
		if !strategy.ForUpdate(t).AllowUnconditionalUpdate(ctx) {
			return apierrors.NewInvalid(schema.GroupKind{Group: t.Group, Kind: t.Plural}, t.Name, field.ErrorList{
				field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update"),
			})
		}
		setRevision(object, current)
		return nil
	}
	if revision != current {
		return apierrors.NewConflict(t.GroupResource(), t.Name, errors.New(modifiedMessage))
	}
	return nil
}

// parseUpdateRevision parses the resourceVersion of an object in a request; 0 if it has none. A number that is too
// large for a revision of etcd becomes negative, which no revision equals.
func parseUpdateRevision(resourceVersion string) (int64, error) {
	if resourceVersion == "" {
		return 0, nil
	}
	revision, err := strconv.ParseUint(resourceVersion, 10, 64)
	return int64(revision), err
}
