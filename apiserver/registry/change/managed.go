package change

import (
	"fmt"
	goruntime "runtime"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/resource"
)

// Track updates the managed fields of object with the changes of manager since current, which is nil for a new
// object. An object with too many fields (tracked.go) loses its managed fields, as do objects that are too large to be
// stored with them; the managers of its fields are then unknown to later applies, which is better than a write that
// fails or takes seconds. Track takes the place of FieldManager.UpdateNoErrors in kube-apiserver's handlers.
func Track(t resource.Target, current, object runtime.Object, manager string) error {
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
		current = t.BodyCodec().NewExternal()
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

// SameManagers reports whether two lists of managed fields are equal except for their times.
func SameManagers(a, b []metav1.ManagedFieldsEntry) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.ManagedFieldsEntry) bool {
		return x.Manager == y.Manager && x.Operation == y.Operation && x.APIVersion == y.APIVersion &&
			x.Subresource == y.Subresource && sameFields(x.FieldsV1, y.FieldsV1)
	})
}

// sameFields compares the bytes of two sets of fields. The library serializes sets in a canonical order.
func sameFields(a, b *metav1.FieldsV1) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(*b)
}
