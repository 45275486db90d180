// Package change computes the object that an update, a patch or a server-side apply stores, from the stored object: a
// pure step between reading the stored object and admission. It reads and writes no storage, so that the registry can
// repeat it after each conflict.
//
// A Change is a Replacement (PUT), a Patch (PATCH, including server-side apply) or an Edit (a function of the server's
// own code). Each of them also updates the managed fields, with Track. A View applies a Change to an endpoint that
// serves another kind than the stored one, such as Scale.
//
// # Life of a patch
//
// The stored object, in the internal version, is converted to the version of the request. A JSON patch or a merge patch
// is applied to its JSON, a strategic merge patch to its generic form (nested maps), and a server-side apply is merged
// by the FieldManager. The result is decoded, or converted, back to the internal version with defaults; unknown and
// duplicate fields become warnings or errors (fieldValidation). Then managed fields, namespace and name are checked.
// The steps and error texts are kube-apiserver's (jsonPatcher, smpPatcher and applyPatcher in
// endpoints/handlers/patch.go).
//
// # Invariants
//
//   - A Change never modifies the object that it starts from.
//   - The CPU time of a change is bounded, whatever the client sends: comparisons.go bounds strategic merge patches,
//     package jsonpatch the other patches, and tracked.go the objects whose fields are tracked. kube-apiserver bounds
//     only the size of the body, the number of operations of a JSON patch, and the bytes that these operations copy.
//
// # What may block
//
// Nothing here waits for etcd. Two things may take longer than the computation itself: the first use of an endpoint
// builds its FieldManager, for which concurrent requests wait, and the conversion of managed fields between versions of
// a custom resource may call a conversion webhook, without a context. All functions may be called concurrently for
// different objects.
package change

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"quorate.dev/apiserver/resource"
)

// Change computes the object to store from the stored one. An implementation has no state of an attempt, so that the
// registry can repeat it with the object of a later revision.
type Change interface {
	// Apply returns the new object, which the caller owns. It may be called more than once, and must not change current,
	// which is nil if there is no object.
	Apply(ctx context.Context, t resource.Target, current runtime.Object) (runtime.Object, error)
	// CreatesMissing reports whether the change can create the object, whatever the strategy says.
	CreatesMissing() bool
	// UID is the UID that the object must have; empty for any.
	UID() types.UID
}

// Replacement is the Change of a PUT: the client's whole object.
type Replacement struct {
	Object  runtime.Object
	Manager string
}

// Apply implements Change.
func (c Replacement) Apply(ctx context.Context, t resource.Target, current runtime.Object) (runtime.Object, error) {
	object := c.Object.DeepCopyObject()
	RemoveDuplicateOwners(ctx, object)
	return object, Track(t, current, object, c.Manager)
}

// CreatesMissing implements Change.
func (Replacement) CreatesMissing() bool { return false }

// UID implements Change.
func (c Replacement) UID() types.UID {
	if accessor, err := meta.Accessor(c.Object); err == nil {
		return accessor.GetUID()
	}
	return ""
}

// Edit is the Change of the server's own code: a function that changes a copy of the stored object.
type Edit func(object runtime.Object) error

// EditError marks an error that an Edit has returned, so that the client package can return that error unchanged.
type EditError struct{ Err error }

func (e *EditError) Error() string { return e.Err.Error() }

// Unwrap returns the error of the Edit.
func (e *EditError) Unwrap() error { return e.Err }

// Apply implements Change. The field manager is resource.Manager of the context.
func (e Edit) Apply(ctx context.Context, t resource.Target, current runtime.Object) (runtime.Object, error) {
	if current == nil { // the kind allows create on update, but the function needs an object
		return nil, apierrors.NewNotFound(t.GroupResource(), t.Name)
	}
	object := current.DeepCopyObject()
	if err := e(object); err != nil {
		return nil, &EditError{err}
	}
	if t.Endpoint.Action != nil { // its field manager tracks the body
		return object, nil
	}
	return object, Track(t, current, object, resource.Manager(ctx))
}

// CreatesMissing implements Change.
func (Edit) CreatesMissing() bool { return false }

// UID implements Change.
func (Edit) UID() types.UID { return "" }

// CheckName refuses an object whose name or namespace differs from the name or namespace in the path of the request.
func CheckName(object metav1.Object, t resource.Target) error {
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
