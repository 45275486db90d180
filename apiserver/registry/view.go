package registry

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"quorate.dev/apiserver/resource"
)

// changeView applies the change to the view of the object, runs mutating admission on the view, and writes it back
// into a copy of the object.
func (u *update) changeView(ctx context.Context) error {
	view := u.target.Endpoint.View
	u.object = u.old.DeepCopyObject()
	accessor, err := meta.Accessor(u.object)
	if err != nil {
		return err
	}
	before, err := viewBefore(view, u.old)
	if err != nil {
		return err
	}
	fields := viewFields(u.target, accessor.GetManagedFields())
	if err := fields.toView(before); err != nil {
		return err
	}
	after, err := u.change.Apply(ctx, u.target, before)
	if err != nil {
		return err
	}
	if err := u.registry.admission.Admit(ctx, u.attributes(ctx, after, before)); err != nil {
		return err
	}
	if err := view.Validate(after); err != nil {
		return err
	}
	if err := view.Set(u.object, after); err != nil {
		return err
	}
	changed, err := meta.Accessor(after)
	if err != nil {
		return err
	}
	if revision := changed.GetResourceVersion(); revision != "" {
		accessor.SetResourceVersion(revision)
	}
	return fields.toParent(u.object, after)
}

// viewBefore returns the view that a change starts from.
func viewBefore(view resource.View, old runtime.Object) (runtime.Object, error) {
	if initial, ok := view.(resource.Initial); ok {
		return initial.Before(old)
	}
	return view.Get(old)
}

// viewManagedFields converts managed fields between an object and its view. handler is nil if the view has none.
type viewManagedFields struct {
	handler *managedfields.ScaleHandler
}

func viewFields(t Target, entries []metav1.ManagedFieldsEntry) viewManagedFields {
	scaled, ok := t.Endpoint.View.(resource.ScaledKind)
	if !ok {
		return viewManagedFields{}
	}
	return viewManagedFields{managedfields.NewScaleHandler(entries, t.Version.Kind.GroupVersion(), scaled.ReplicasPaths())}
}

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
