package registry

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/resource"
)

// changeView applies a change to the view of an object, has it admitted, and carries it over to a copy of the object.
func (r *Registry) changeView(ctx context.Context, t Target, change Change, old runtime.Object, options WriteOptions) (runtime.Object, error) {
	parent := old.DeepCopyObject()
	accessor, err := meta.Accessor(parent)
	if err != nil {
		return nil, err
	}
	before, err := viewBefore(t.Endpoint.View, old)
	if err != nil {
		return nil, err
	}
	fields := viewFields(t, accessor.GetManagedFields())
	if err := fields.toView(before); err != nil {
		return nil, err
	}
	after, err := change.Apply(ctx, t, before)
	if err != nil {
		return nil, err
	}
	if err := r.admission.Admit(ctx, r.attributes(ctx, t, admission.Update, after, before, options)); err != nil {
		return nil, err
	}
	if err := t.Endpoint.View.Validate(after); err != nil {
		return nil, err
	}
	if err := t.Endpoint.View.Set(parent, after); err != nil {
		return nil, err
	}
	view, err := meta.Accessor(after)
	if err != nil {
		return nil, err
	}
	if revision := view.GetResourceVersion(); revision != "" {
		accessor.SetResourceVersion(revision)
	}
	return parent, fields.toParent(parent, after)
}

// viewBefore is the view that a change starts from.
func viewBefore(view resource.View, old runtime.Object) (runtime.Object, error) {
	if initial, ok := view.(resource.Initial); ok {
		return initial.Before(old)
	}
	return view.Get(old)
}

// viewManagedFields carries managed fields between an object and its view; nil where the view has none.
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
