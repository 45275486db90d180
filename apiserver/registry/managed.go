package registry

import (
	"context"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/warning"
)

// track updates the managed fields of object with the changes of manager since current, which is nil for a new
// object. An object with too many fields loses its managed fields, as do objects that are too large with them.
func track(t Target, current, object runtime.Object, manager string) error {
	if t.Endpoint.FieldManager == nil {
		return nil
	}
	fields, err := t.Endpoint.FieldManager()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("prepare the field manager: %w", err))
	}
	if !isTrackable(object) || !isTrackable(current) {
		accessor, err := meta.Accessor(object)
		if err == nil {
			accessor.SetManagedFields(nil)
		}
		return err
	}
	if current == nil {
		current = bodyCodec(t).NewExternal()
	}
	return recoverable(func() { fields.UpdateNoErrors(current, object, manager) })
}

// recoverable converts the panic of structured-merge-diff for an object without a JSON form into a bad request: the
// JSON embedded in a protobuf body, as in the data of a ControllerRevision, may be invalid.
func recoverable(update func()) (err error) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case goruntime.Error:
			panic(cause)
		case error:
			err = apierrors.NewBadRequest(cause.Error())
		default:
			panic(cause)
		}
	}()
	update()
	return nil
}

// sameManagers reports whether two lists of managed fields are equal except for their times.
func sameManagers(a, b []metav1.ManagedFieldsEntry) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.ManagedFieldsEntry) bool {
		return x.Manager == y.Manager && x.Operation == y.Operation && x.APIVersion == y.APIVersion &&
			x.Subresource == y.Subresource && sameFields(x.FieldsV1, y.FieldsV1)
	})
}

func sameFields(a, b *metav1.FieldsV1) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(*b)
}

// Warnings about duplicate owner references, as in kube-apiserver. Bodies of creates and updates are checked before
// and after mutating admission, patched objects only after it.
const (
	duplicateOwners         = duplicateEntries + duplicateOwnersAdvice
	duplicateOwnersAdmitted = duplicateEntries + " after mutating admission happens" + duplicateOwnersAdvice

	duplicateEntries      = ".metadata.ownerReferences contains duplicate entries"
	duplicateOwnersAdvice = "; API server dedups owner references in 1.20+, and may reject such requests as early as " +
		"1.24; please fix your requests; duplicate UID(s) observed: %v"
)

// removeDuplicateOwners removes duplicate owner references and sends a warning of the given format.
func removeDuplicateOwners(ctx context.Context, object runtime.Object, warningFormat string) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	owners := accessor.GetOwnerReferences()
	if len(owners) < 2 {
		return
	}
	kept := make([]metav1.OwnerReference, 0, len(owners))
	seen := make(map[ownerKey]bool, len(owners))
	var duplicates []string
	for _, owner := range owners {
		key := newOwnerKey(owner)
		if seen[key] {
			duplicates = append(duplicates, string(owner.UID))
			continue
		}
		seen[key] = true
		kept = append(kept, owner)
	}
	if len(duplicates) == 0 {
		return
	}
	accessor.SetOwnerReferences(kept)
	warning.AddWarning(ctx, "", fmt.Sprintf(warningFormat, strings.Join(duplicates, ", ")))
}

// ownerKey is an owner reference that can be compared: equal references have equal keys. Comparing each reference with all
// others would take seconds for ten thousand.
type ownerKey struct {
	reference                  metav1.OwnerReference // without pointers
	controller, blocksDeletion optionalBool
}

// optionalBool is the value of a *bool.
type optionalBool struct{ isSet, value bool }

func newOptionalBool(value *bool) optionalBool {
	return optionalBool{isSet: value != nil, value: value != nil && *value}
}

func newOwnerKey(owner metav1.OwnerReference) ownerKey {
	key := ownerKey{
		reference: owner, controller: newOptionalBool(owner.Controller), blocksDeletion: newOptionalBool(owner.BlockOwnerDeletion),
	}
	key.reference.Controller, key.reference.BlockOwnerDeletion = nil, nil
	return key
}
