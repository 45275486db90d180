// Package strategy runs upstream's strategies: the functions of a kind that complete and validate an object before it
// is created, updated or deleted. It bounds the validation errors, of which an object may have thousands, sets the
// finalizers of the garbage collector, and decides when the deletion of an object is complete.
//
// All functions are synchronous and need no lock: strategies have no state, and the object of a write belongs to its
// attempt. A strategy changes only the new object; the old object of an update is read-only.
package strategy

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// ForUpdate returns the endpoint's own strategy for updates, or the resource's if the endpoint is a view of it.
func ForUpdate(t resource.Target) rest.RESTUpdateStrategy {
	if t.Endpoint.Update != nil {
		return t.Endpoint.Update
	}
	return t.Main().Update
}

// BeforeCreate runs rest.BeforeCreate with at most request.MaxErrors validation errors. An error contains the invalid
// value, which may be a large part of the object, so that thousands of errors would be many times as large as the
// object.
func BeforeCreate(ctx context.Context, t resource.Target, object runtime.Object) error {
	strategy, ctx := t.Main().Create, withRequestInfo(ctx, t)
	if err := checkLongMetadata(strategy, object, nil); err != nil {
		return err
	}
	bounded := &boundedCreate{RESTCreateStrategy: strategy, target: t}
	var limited rest.RESTCreateStrategy = bounded
	if declarative, ok := strategy.(rest.DeclarativeValidationStrategy); ok {
		limited = &declarativeCreate{bounded, declaration{declarative, &bounded.omitted}}
	}
	return request.WithOmitted(rest.BeforeCreate(limited, ctx, object), bounded.omitted)
}

// BeforeUpdate runs rest.BeforeUpdate with at most request.MaxErrors validation errors.
func BeforeUpdate(ctx context.Context, t resource.Target, object, old runtime.Object) error {
	strategy, ctx := ForUpdate(t), withRequestInfo(ctx, t)
	if err := checkLongMetadata(strategy, object, old); err != nil {
		return err
	}
	bounded := &boundedUpdate{RESTUpdateStrategy: strategy, target: t}
	var limited rest.RESTUpdateStrategy = bounded
	if declarative, ok := strategy.(rest.DeclarativeValidationStrategy); ok {
		limited = &declarativeUpdate{bounded, declaration{declarative, &bounded.omitted}}
	}
	return request.WithOmitted(rest.BeforeUpdate(limited, ctx, object, old), bounded.omitted)
}

// withRequestInfo adds the RequestInfo of the target if the context has none: declarative validation depends on its
// version and subresource.
func withRequestInfo(ctx context.Context, t resource.Target) context.Context {
	if _, found := genericrequest.RequestInfoFrom(ctx); found {
		return ctx
	}
	return genericrequest.WithRequestInfo(ctx, &genericrequest.RequestInfo{
		IsResourceRequest: true, APIGroup: t.Group, APIVersion: t.Version.Name, Resource: t.Plural,
		Subresource: t.Endpoint.Subresource, Namespace: t.Namespace, Name: t.Name,
	})
}

// boundedCreate is a strategy for one object that returns at most request.MaxErrors validation errors.
type boundedCreate struct {
	rest.RESTCreateStrategy
	target  resource.Target
	omitted int // number of errors that Validate has left out
}

func (s *boundedCreate) Validate(ctx context.Context, object runtime.Object) (errs field.ErrorList) {
	errs, s.omitted = request.Bound(s.RESTCreateStrategy.Validate(ctx, object))
	return errs
}

// WarningsOnCreate returns the warnings about a new object.
func (s *boundedCreate) WarningsOnCreate(ctx context.Context, object runtime.Object) []string {
	return s.RESTCreateStrategy.WarningsOnCreate(ctx, warned(s.target, object))
}

// boundedUpdate is a strategy for one object that returns at most request.MaxErrors validation errors.
type boundedUpdate struct {
	rest.RESTUpdateStrategy
	target  resource.Target
	omitted int
}

func (s *boundedUpdate) ValidateUpdate(ctx context.Context, object, old runtime.Object) (errs field.ErrorList) {
	errs, s.omitted = request.Bound(s.RESTUpdateStrategy.ValidateUpdate(ctx, object, old))
	return errs
}

// WarningsOnUpdate returns the warnings about a changed object.
func (s *boundedUpdate) WarningsOnUpdate(ctx context.Context, object, old runtime.Object) []string {
	return s.RESTUpdateStrategy.WarningsOnUpdate(ctx, warned(s.target, object), old)
}

// warned returns the object from which the warnings about an object are computed.
func warned(t resource.Target, object runtime.Object) runtime.Object {
	if t.Warned == nil {
		return object
	}
	return t.Warned(object)
}

// maxOwners is the number of owner references up to which their validation errors stay small. Each of these errors
// contains all references, so that their total size grows with the square of the number.
const maxOwners = 4

// checkLongMetadata validates the metadata of an object with so many entries that the generic validation of
// rest.BeforeCreate and rest.BeforeUpdate, which follows, may return more errors than request.Bound shows.
func checkLongMetadata(strategy runtime.ObjectTyper, object, old runtime.Object) error {
	accessor, err := meta.Accessor(object)
	if err != nil || entries(accessor) <= request.MaxErrors && len(accessor.GetOwnerReferences()) <= maxOwners {
		return nil // rest.BeforeCreate reports the error
	}
	path := field.NewPath("metadata")
	errs := validation.ValidateObjectMetaAccessor(accessor, accessor.GetNamespace() != "",
		func(string, bool) []string { return nil }, path)
	if former, err := meta.Accessor(old); old != nil && err == nil {
		errs = validation.ValidateObjectMetaAccessorUpdate(accessor, former, path)
	}
	if _, omitted := request.Bound(errs); omitted == 0 {
		return nil
	}
	kinds, _, err := strategy.ObjectKinds(object)
	if err != nil {
		return err
	}
	return request.Invalid(kinds[0].GroupKind(), accessor.GetName(), errs)
}

// entries returns the number of entries of an object's metadata that are validated one by one.
func entries(object metav1.Object) int {
	return len(object.GetLabels()) + len(object.GetAnnotations()) + len(object.GetFinalizers()) +
		len(object.GetOwnerReferences()) +
		len(object.GetManagedFields())
}
