package crd

import (
	"context"
	"fmt"
	"maps"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	celmodel "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/listtype"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/objectmeta"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
)

// strategy is the create, update and delete strategy of one version. It mirrors customResourceStrategy of
// apiextensions-apiserver, in the order of its checks, and differs in limits only: the number of schema violations, the
// CPU time of rules and the digits of quantities. Its methods change only the new object.
type strategy struct {
	typer
	version *version
}

var (
	_ rest.RESTCreateStrategy = (*strategy)(nil)
	_ rest.RESTUpdateStrategy = (*strategy)(nil)
	_ rest.RESTDeleteStrategy = (*strategy)(nil)
)

// GenerateName implements names.NameGenerator.
func (s *strategy) GenerateName(base string) string {
	return names.SimpleNameGenerator.GenerateName(base)
}

// NamespaceScoped implements rest.RESTCreateStrategy.
func (s *strategy) NamespaceScoped() bool { return s.version.of.namespaced }

// AllowCreateOnUpdate is false: custom resources are created by POST or apply.
func (s *strategy) AllowCreateOnUpdate(context.Context) bool { return false }

// AllowUnconditionalUpdate is false: a PUT needs a resourceVersion.
func (s *strategy) AllowUnconditionalUpdate(context.Context) bool { return false }

// Canonicalize implements rest.RESTCreateStrategy. As upstream, it changes nothing.
func (s *strategy) Canonicalize(runtime.Object) {}

// PrepareForCreate drops the status that a client sends if the status is a subresource.
func (s *strategy) PrepareForCreate(_ context.Context, object runtime.Object) {
	created := object.(*unstructured.Unstructured)
	if s.version.status {
		delete(created.Object, "status")
	}
	created.SetGeneration(1)
}

// PrepareForUpdate keeps the old status if the status subresource is enabled. It increments the generation if anything
// outside metadata has changed.
func (s *strategy) PrepareForUpdate(_ context.Context, object, old runtime.Object) {
	updated, previous := object.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	if s.version.status {
		setOrDelete(updated.Object, "status", previous.Object)
	}
	if !apiequality.Semantic.DeepEqual(withoutMetadata(updated.Object), withoutMetadata(previous.Object)) {
		updated.SetGeneration(previous.GetGeneration() + 1)
	}
}

// setOrDelete sets a field of content to its value in from, without copying it, or deletes the field if from has none.
func setOrDelete(content map[string]any, name string, from map[string]any) {
	if value, ok := from[name]; ok {
		content[name] = value
	} else {
		delete(content, name)
	}
}

// withoutMetadata returns a shallow copy of the content without metadata.
func withoutMetadata(content map[string]any) map[string]any {
	rest := maps.Clone(content)
	delete(rest, "metadata")
	return rest
}

func (s *strategy) WarningsOnCreate(_ context.Context, object runtime.Object) []string {
	return finalizerWarnings(object.(*unstructured.Unstructured).GetFinalizers(), nil)
}

func (s *strategy) WarningsOnUpdate(_ context.Context, object, old runtime.Object) []string {
	return finalizerWarnings(object.(*unstructured.Unstructured).GetFinalizers(),
		old.(*unstructured.Unstructured).GetFinalizers())
}

// Validate implements rest.RESTCreateStrategy. As upstream, an object with a wrong kind is not validated with the
// schema, but with the checks after it. If the schema cannot be compiled, each write fails with that error; the
// condition of the definition does not show it.
func (s *strategy) Validate(ctx context.Context, object runtime.Object) field.ErrorList {
	created := object.(*unstructured.Unstructured)
	structural, compiled, problem := s.compiled()
	if problem != nil {
		return field.ErrorList{problem}
	}
	errs := validateType(created, s.version.kind)
	if len(errs) == 0 {
		errs = append(errs, s.validateNewMetadata(ctx, created)...)
		errs = append(errs, validation.ValidateCustomResource(nil, created.Object, compiled.object.within(ctx))...)
		errs = append(errs, validateScaleSpec(created.Object, s.version.scale)...)
		errs = append(errs, validateScaleStatus(created.Object, s.version.scale)...)
	}
	errs = append(errs, objectmeta.Validate(ctx, nil, created.Object, structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, structural, created.Object)...)
	return append(errs, ruleCheck{compiled, structural, created.Object, nil}.run(ctx, errs)...)
}

// ValidateUpdate implements rest.RESTUpdateStrategy. correlated pairs the values of the new object with the values of
// the old object, so that violations in unchanged parts are tolerated (ratcheting, KEP-4008): an object remains
// updatable after its schema has become stricter. The metadata of embedded objects is not ratcheted.
func (s *strategy) ValidateUpdate(ctx context.Context, object, old runtime.Object) field.ErrorList {
	updated, previous := object.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	structural, compiled, problem := s.compiled()
	if problem != nil {
		return field.ErrorList{problem}
	}
	correlated := common.NewCorrelatedObject(updated.Object, previous.Object, &celmodel.Structural{Structural: structural})
	errs := validateType(updated, s.version.kind)
	if len(errs) == 0 {
		errs = append(errs, s.validateMetadata(ctx, updated, previous)...)
		errs = append(errs,
			validation.ValidateCustomResourceUpdate(nil, updated.Object, previous.Object, compiled.object.within(ctx),
				validation.WithRatcheting(correlated))...)
		errs = append(errs, validateScaleSpec(updated.Object, s.version.scale)...)
		errs = append(errs, validateScaleStatus(updated.Object, s.version.scale)...)
	}
	errs = append(errs, objectmeta.Validate(ctx, nil, updated.Object, structural, false)...)
	errs = append(errs, newListErrors(structural, updated.Object, previous.Object)...)
	return append(errs,
		ruleCheck{compiled, structural, updated.Object, previous.Object}.run(ctx, errs, cel.WithRatcheting(correlated))...)
}

// compiled returns the structural schema and the validators, which the first caller compiles.
func (s *strategy) compiled() (*structuralschema.Structural, *validators, *field.Error) {
	compiled, err := s.version.validation()
	if err != nil {
		return nil, nil, field.InternalError(nil, fmt.Errorf("the server could not properly serve the CR schema: %w", err))
	}
	structural, err := s.version.structural()
	if err != nil {
		return nil, nil, field.InternalError(nil, fmt.Errorf("the server could not properly serve the CR schema: %w", err))
	}
	return structural, compiled, nil
}

// newListErrors validates list types (x-kubernetes-list-type set and map). Violations are ratcheted: if the previous
// object violates the list types of its schema anywhere, the updated object may violate them everywhere, as upstream.
func newListErrors(structural *structuralschema.Structural, updated, previous map[string]any) field.ErrorList {
	errs := listtype.ValidateListSetsAndMaps(nil, structural, updated)
	if len(errs) == 0 || len(listtype.ValidateListSetsAndMaps(nil, structural, previous)) > 0 {
		return nil
	}
	return errs
}

// statusStrategy is the update strategy of the status subresource. It mirrors upstream's statusStrategy: only the
// status and the managed fields can change, and only the status is validated with the schema, but rules and list types
// of the whole object are, because they may compare the status with other fields.
type statusStrategy struct {
	strategy
}

// PrepareForUpdate only takes status and managedFields from the new object.
func (s *statusStrategy) PrepareForUpdate(_ context.Context, object, old runtime.Object) {
	updated := object.(*unstructured.Unstructured)
	managers := updated.GetManagedFields()
	sent := updated.Object
	updated.Object = old.(*unstructured.Unstructured).DeepCopy().Object
	updated.SetManagedFields(managers)
	setOrDelete(updated.Object, "status", sent)
}

// ValidateUpdate implements rest.RESTUpdateStrategy.
func (s *statusStrategy) ValidateUpdate(ctx context.Context, object, old runtime.Object) field.ErrorList {
	updated, previous := object.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	structural, compiled, problem := s.compiled()
	if problem != nil {
		return field.ErrorList{problem}
	}
	correlated := common.NewCorrelatedObject(updated.Object, previous.Object, &celmodel.Structural{Structural: structural})
	errs := validateType(updated, s.version.kind)
	if len(errs) == 0 {
		errs = append(errs, s.validateMetadata(ctx, updated, previous)...)
		errs = append(errs, s.validateStatus(ctx, updated, previous, compiled, structural, correlated)...)
		errs = append(errs, validateScaleStatus(updated.Object, s.version.scale)...)
	}
	errs = append(errs, newListErrors(structural, updated.Object, previous.Object)...)
	return append(errs,
		ruleCheck{compiled, structural, updated.Object, previous.Object}.run(ctx, errs, cel.WithRatcheting(correlated))...)
}

func (s *statusStrategy) validateStatus(
	ctx context.Context, updated, previous *unstructured.Unstructured, compiled *validators,
	structural *structuralschema.Structural, correlated *common.CorrelatedObject,
) field.ErrorList {
	status, ok := updated.Object["status"]
	if !ok {
		return nil
	}
	var options []validation.ValidationOption
	if structural != nil {
		options = append(options, validation.WithRatcheting(correlated.Key("status")))
	}
	return validation.ValidateCustomResourceUpdate(field.NewPath("status"), status, previous.Object["status"],
		compiled.status.within(ctx), options...)
}

// WarningsOnUpdate implements rest.RESTUpdateStrategy. There are no warnings, because finalizers do not change.
func (s *statusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
