package registry

import (
	"errors"
	"fmt"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"quorate.dev/apiserver/resource"
)

// CheckName refuses an object whose name or namespace differs from those of the request's path.
func CheckName(object metav1.Object, t Target) error {
	switch name, namespace := object.GetName(), object.GetNamespace(); {
	case name == "":
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the name of the object (%s based on URL) was undeterminable: name must be provided", t.Name))
	case name != t.Name:
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the name of the object (%s) does not match the name on the URL (%s)", name, t.Name))
	case t.Namespace != "" && namespace != "" && namespace != t.Namespace:
		return apierrors.NewBadRequest(fmt.Sprintf(
			"the namespace of the object (%s) does not match the namespace on the request (%s)", namespace, t.Namespace))
	}
	return nil
}

// checkUID refuses a change that is meant for an earlier or later object of the same name.
func (u *update) checkUID(actual types.UID) error {
	expected := u.change.UID()
	if expected == "" || expected == actual {
		return nil
	}
	precondition := resource.PreconditionError{What: "UID", Wanted: string(expected), Actual: string(actual)}
	return u.registry.storageConflict(u.target, precondition.Error(), u.options.DryRun)
}

// storageConflict is the conflict that kube-apiserver's storage layer reports. Its dry-run storage reports keys
// without the prefix.
func (r *Registry) storageConflict(t Target, message string, dryRun bool) error {
	key := r.storageOf(t.Match).Store.Key(t.path())
	if dryRun {
		key = "/" + t.path()
	}
	return apierrors.NewConflict(t.GroupResource(), t.Name, fmt.Errorf(
		"StorageError: invalid object, Code: 4, Key: %s, ResourceVersion: 0, AdditionalErrorMsg: %s", key, message))
}

// checkNewResourceVersion refuses to create an object that has a resourceVersion. Like kube-apiserver's, a dry run
// does not check it.
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

// checkCreateByUpdate refuses a create by update that carries a UID. A valid resourceVersion is ignored.
func checkCreateByUpdate(t Target, object runtime.Object) error {
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

// checkRevision compares the resourceVersion of an update with the current revision. An unconditional update, which
// has none, gets the current one.
func checkRevision(t Target, object runtime.Object, current int64) error {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	revision, err := parseUpdateRevision(accessor.GetResourceVersion())
	if err != nil {
		return err
	}
	if revision == 0 {
		if !updateStrategy(t).AllowUnconditionalUpdate() {
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

// parseUpdateRevision parses the resourceVersion of an object in a request; 0 if it has none.
func parseUpdateRevision(resourceVersion string) (int64, error) {
	if resourceVersion == "" {
		return 0, nil
	}
	revision, err := strconv.ParseUint(resourceVersion, 10, 64)
	return int64(revision), err
}
