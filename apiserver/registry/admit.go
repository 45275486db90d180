package registry

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/resource"
)

var namespaces = schema.GroupResource{Resource: "namespaces"}

// attributes completes the attributes of a write for admission. The caller sets Operation, Object and Old. It changes
// and returns a.
func attributes(
	ctx context.Context, t resource.Target, options WriteOptions, a *admission.Attributes,
) *admission.Attributes {
	a.Definition, a.Version = t.Definition, t.Version
	a.Subresource, a.Kind = t.Endpoint.Subresource, t.Endpoint.Kind
	a.Namespace, a.Name = t.Namespace, t.Name
	a.Options, a.DryRun, a.Internal = optionsOf(a.Operation, options.Options), options.DryRun, options.Internal
	a.User, _ = request.UserFrom(ctx)
	if t.GroupResource() == namespaces {
		a.Namespace = t.Name // kube-apiserver's RequestInfo: a namespace is in itself
	}
	if options.Collection {
		a.Name = ""
	}
	return a
}

// admit runs mutating and validating admission in one step, for DELETE and CONNECT, between whose steps no strategy
// completes an object.
func (r *Registry) admit(ctx context.Context, attributes *admission.Attributes) error {
	if err := r.admission.Admit(ctx, attributes); err != nil {
		return err
	}
	return r.admission.Validate(ctx, attributes)
}

// optionsOf returns a client's options with the kind that webhooks are shown. An update that creates the object has the
// options of a create, like updateToCreateOptions of kube-apiserver. It sets the kind in place. Concurrent deletions of
// a collection therefore must not share options: each attempt of a deletion has a copy.
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
