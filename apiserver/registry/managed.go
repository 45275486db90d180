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

// track records in object's managed fields what manager changed since current; current is nil for a new object.
func track(t Target, current, object runtime.Object, manager string) error {
	if t.Endpoint.FieldManager == nil {
		return nil
	}
	fields, err := t.Endpoint.FieldManager()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("prepare the field manager: %w", err))
	}
	if current == nil {
		current = bodyModel(t).NewExternal()
	}
	return recoverable(func() { fields.UpdateNoErrors(current, object, manager) })
}

// recoverable returns what structured-merge-diff panics with when an object has no JSON form. That is the client's
// fault: a protobuf body can hold anything where JSON is embedded, as in the data of a ControllerRevision.
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

// sameManagers reports whether two lists of managed fields differ in nothing but their times.
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

// removal is where duplicate owner references are found.
type removal string

const (
	// fromClient is before managed fields and admission, in an object that the client sent whole.
	fromClient removal = ""
	// afterAdmission is where those of a patch are found, too.
	afterAdmission removal = " after mutating admission happens"
)

const duplicateOwners = ".metadata.ownerReferences contains duplicate entries%s; " +
	"API server dedups owner references in 1.20+, and may reject such requests as early as 1.24; " +
	"please fix your requests; duplicate UID(s) observed: %s"

// removeDuplicateOwners drops repeated owner references and warns the client.
func removeDuplicateOwners(ctx context.Context, object runtime.Object, found removal) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	owners := accessor.GetOwnerReferences()
	if len(owners) < 2 {
		return
	}
	kept := make([]metav1.OwnerReference, 0, len(owners))
	var duplicates []string
	for _, owner := range owners {
		if slices.ContainsFunc(kept, func(k metav1.OwnerReference) bool { return sameOwner(k, owner) }) {
			duplicates = append(duplicates, string(owner.UID))
			continue
		}
		kept = append(kept, owner)
	}
	if len(duplicates) == 0 {
		return
	}
	accessor.SetOwnerReferences(kept)
	warning.AddWarning(ctx, "", fmt.Sprintf(duplicateOwners, found, strings.Join(duplicates, ", ")))
}

func sameOwner(a, b metav1.OwnerReference) bool {
	return a.UID == b.UID && a.APIVersion == b.APIVersion && a.Kind == b.Kind && a.Name == b.Name &&
		isTrue(a.Controller) == isTrue(b.Controller) && isTrue(a.BlockOwnerDeletion) == isTrue(b.BlockOwnerDeletion)
}

func isTrue(b *bool) bool { return b != nil && *b }
