package registry

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/admission"
)

// namespaces are said to be created in themselves.
var namespaces = schema.GroupResource{Resource: "namespaces"}

// attributes describe a write to admission.
func (r *Registry) attributes(ctx context.Context, t Target, operation admission.Operation, object, old runtime.Object, options WriteOptions) *admission.Attributes {
	user, _ := request.UserFrom(ctx)
	a := &admission.Attributes{
		Operation:   operation,
		Definition:  t.Definition,
		Version:     t.Version,
		Subresource: t.Endpoint.Subresource,
		Kind:        t.Endpoint.Kind,
		Namespace:   t.Namespace,
		Name:        t.Name,
		Object:      object,
		Old:         old,
		Options:     optionsOf(operation, options.Options),
		DryRun:      options.DryRun,
		User:        user,
		Internal:    options.Internal,
	}
	if operation == admission.Create && t.GroupResource() == namespaces {
		a.Namespace = t.Name
	}
	if options.Collection {
		a.Name = ""
	}
	return a
}

// admit asks all of admission about what is not stored, or was asked about before.
func (r *Registry) admit(ctx context.Context, attributes *admission.Attributes) error {
	if err := r.admission.Admit(ctx, attributes); err != nil {
		return err
	}
	return r.admission.Validate(ctx, attributes)
}

// optionsOf returns a client's options with the kind that webhooks are shown. An update that creates the object has the
// options of a create.
func optionsOf(operation admission.Operation, options runtime.Object) runtime.Object {
	if update, ok := options.(*metav1.UpdateOptions); ok && operation == admission.Create {
		options = &metav1.CreateOptions{
			DryRun: update.DryRun, FieldManager: update.FieldManager, FieldValidation: update.FieldValidation,
		}
	}
	name := ""
	switch options.(type) {
	case *metav1.CreateOptions:
		name = "CreateOptions"
	case *metav1.UpdateOptions:
		name = "UpdateOptions"
	case *metav1.DeleteOptions:
		name = "DeleteOptions"
	default:
		return options
	}
	options.GetObjectKind().SetGroupVersionKind(metav1.SchemeGroupVersion.WithKind(name))
	return options
}
