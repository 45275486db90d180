package registry

import (
	"context"
	"fmt"
	goruntime "runtime"
	"slices"
	"strings"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/warning"
)

// track updates the managed fields of object with the changes of manager since current, which is nil for a new
// object.
func track(t Target, current, object runtime.Object, manager string) error {
	if t.Endpoint.FieldManager == nil {
		return nil
	}
	fields, err := t.Endpoint.FieldManager()
	if err != nil {
		return apierrors.NewInternalError(fmt.Errorf("prepare the field manager: %w", err))
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
	seen := make(map[types.UID]bool, len(owners))
	var duplicates []string
	for _, owner := range owners {
		same := func(k metav1.OwnerReference) bool { return apiequality.Semantic.DeepEqual(k, owner) }
		if seen[owner.UID] && slices.ContainsFunc(kept, same) {
			duplicates = append(duplicates, string(owner.UID))
			continue
		}
		seen[owner.UID] = true
		kept = append(kept, owner)
	}
	if len(duplicates) == 0 {
		return
	}
	accessor.SetOwnerReferences(kept)
	warning.AddWarning(ctx, "", fmt.Sprintf(warningFormat, strings.Join(duplicates, ", ")))
}
