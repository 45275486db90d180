package registry

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/request"
)

// beforeCreate runs rest.BeforeCreate with at most request.MaxErrors validation errors.
func beforeCreate(ctx context.Context, strategy rest.RESTCreateStrategy, object runtime.Object) error {
	if err := checkLongMetadata(strategy, object, nil); err != nil {
		return err
	}
	bounded := &boundedCreate{RESTCreateStrategy: strategy}
	return request.WithOmitted(rest.BeforeCreate(bounded, ctx, object), bounded.omitted)
}

// beforeUpdate runs rest.BeforeUpdate with at most request.MaxErrors validation errors.
func beforeUpdate(ctx context.Context, strategy rest.RESTUpdateStrategy, object, old runtime.Object) error {
	if err := checkLongMetadata(strategy, object, old); err != nil {
		return err
	}
	bounded := &boundedUpdate{RESTUpdateStrategy: strategy}
	return request.WithOmitted(rest.BeforeUpdate(bounded, ctx, object, old), bounded.omitted)
}

// boundedCreate is a strategy for one object that returns at most request.MaxErrors validation errors.
type boundedCreate struct {
	rest.RESTCreateStrategy
	omitted int
}

func (s *boundedCreate) Validate(ctx context.Context, object runtime.Object) (errs field.ErrorList) {
	errs, s.omitted = request.Bound(s.RESTCreateStrategy.Validate(ctx, object))
	return errs
}

// boundedUpdate is a strategy for one object that returns at most request.MaxErrors validation errors.
type boundedUpdate struct {
	rest.RESTUpdateStrategy
	omitted int
}

func (s *boundedUpdate) ValidateUpdate(ctx context.Context, object, old runtime.Object) (errs field.ErrorList) {
	errs, s.omitted = request.Bound(s.RESTUpdateStrategy.ValidateUpdate(ctx, object, old))
	return errs
}

// checkLongMetadata validates the metadata of an object with so many entries that the generic validation of
// rest.BeforeCreate and rest.BeforeUpdate, which follows, may return more than request.MaxErrors errors.
func checkLongMetadata(strategy runtime.ObjectTyper, object, old runtime.Object) error {
	accessor, err := meta.Accessor(object)
	if err != nil || entries(accessor) <= request.MaxErrors {
		return nil // rest.BeforeCreate reports the error
	}
	path := field.NewPath("metadata")
	errs := validation.ValidateObjectMetaAccessor(accessor, accessor.GetNamespace() != "", func(string, bool) []string { return nil }, path)
	if former, err := meta.Accessor(old); old != nil && err == nil {
		errs = validation.ValidateObjectMetaAccessorUpdate(accessor, former, path)
	}
	if len(errs) <= request.MaxErrors {
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
	return len(object.GetLabels()) + len(object.GetAnnotations()) + len(object.GetFinalizers()) + len(object.GetOwnerReferences()) +
		len(object.GetManagedFields())
}
