package change

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"quorate.dev/apiserver/resource"
)

// View is a change of an object through an endpoint that serves another kind computed from it, such as Scale. It takes
// the place of the UpdatedObjectInfo that kube-apiserver's ScaleREST wraps around the client's
// (scaleUpdatedObjectInfo). A View belongs to one attempt of an update.
type View struct {
	// Before is the view of the stored object, which the change starts from.
	Before runtime.Object
	// Object is a copy of the stored object. Write writes the changed view into it.
	Object runtime.Object

	view   resource.View
	fields viewManagedFields
}

// NewView returns the view of a stored object.
func NewView(t resource.Target, stored runtime.Object) (*View, error) {
	v := &View{Object: stored.DeepCopyObject(), view: t.Endpoint.View}
	accessor, err := meta.Accessor(v.Object)
	if err != nil {
		return nil, err
	}
	if v.Before, err = ViewBefore(v.view, stored); err != nil {
		return nil, err
	}
	v.fields = viewFields(t, accessor.GetManagedFields())
	return v, v.fields.toView(v.Before)
}

// Write validates the changed view and writes it into Object. The resourceVersion of the view becomes the
// resourceVersion of the object, so that the registry checks it as in any other update.
func (v *View) Write(ctx context.Context, after runtime.Object) error {
	if err := v.view.Validate(ctx, after, v.Before); err != nil {
		return err
	}
	if err := v.view.Set(v.Object, after); err != nil {
		return err
	}
	changed, err := meta.Accessor(after)
	if err != nil {
		return err
	}
	if revision := changed.GetResourceVersion(); revision != "" {
		accessor, err := meta.Accessor(v.Object)
		if err != nil {
			return err
		}
		accessor.SetResourceVersion(revision)
	}
	return v.fields.toParent(v.Object, after)
}

// ViewBefore returns the view that a change starts from. It differs from View.Get for views that do not exist until
// they are written for the first time (resource.Initial).
func ViewBefore(view resource.View, old runtime.Object) (runtime.Object, error) {
	if initial, ok := view.(resource.Initial); ok {
		return initial.Before(old)
	}
	return view.Get(old)
}

// viewManagedFields converts managed fields between an object and its view: a manager of spec.replicas of the object is
// a manager of spec.replicas of the Scale, and back. handler is nil if the view has no managed fields.
type viewManagedFields struct {
	handler *managedfields.ScaleHandler
}

func viewFields(t resource.Target, entries []metav1.ManagedFieldsEntry) viewManagedFields {
	scaled, ok := t.Endpoint.View.(resource.ScaledKind)
	if !ok {
		return viewManagedFields{}
	}
	return viewManagedFields{managedfields.NewScaleHandler(entries, t.Version.Kind.GroupVersion(), scaled.ReplicasPaths())}
}

// toView sets the managed fields of the view, before the change.
func (f viewManagedFields) toView(view runtime.Object) error {
	if f.handler == nil {
		return nil
	}
	entries, err := f.handler.ToSubresource()
	if err != nil {
		return err
	}
	accessor, err := meta.Accessor(view)
	if err != nil {
		return err
	}
	accessor.SetManagedFields(entries)
	return nil
}

// toParent sets the managed fields of the object from the managed fields of the changed view: a manager that has
// changed the replicas through the view takes the field from its former managers (ScaleHandler.ToParent).
func (f viewManagedFields) toParent(parent, view runtime.Object) error {
	if f.handler == nil {
		return nil
	}
	from, err := meta.Accessor(view)
	if err != nil {
		return err
	}
	entries, err := f.handler.ToParent(from.GetManagedFields())
	if err != nil {
		return err
	}
	to, err := meta.Accessor(parent)
	if err != nil {
		return err
	}
	to.SetManagedFields(entries)
	return nil
}
