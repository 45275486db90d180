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
	metavalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/apiserver/pkg/storage/names"
)

// strategy is the create, update and delete strategy of one version.
type strategy struct {
	typer
	version *version
}

var (
	_ rest.RESTCreateStrategy = (*strategy)(nil)
	_ rest.RESTUpdateStrategy = (*strategy)(nil)
	_ rest.RESTDeleteStrategy = (*strategy)(nil)
)

func (s *strategy) GenerateName(base string) string {
	return names.SimpleNameGenerator.GenerateName(base)
}

func (s *strategy) NamespaceScoped() bool { return s.version.of.namespaced }

// AllowCreateOnUpdate is false: custom resources are created by POST or apply.
func (s *strategy) AllowCreateOnUpdate() bool { return false }

func (s *strategy) AllowUnconditionalUpdate() bool { return false }

func (s *strategy) Canonicalize(runtime.Object) {}

func (s *strategy) PrepareForCreate(_ context.Context, object runtime.Object) {
	created := object.(*unstructured.Unstructured)
	if s.version.status {
		delete(created.Object, "status")
	}
	created.SetGeneration(1)
}

// PrepareForUpdate keeps the old status if status is a subresource, and increments the generation if anything but
// metadata changed.
func (s *strategy) PrepareForUpdate(_ context.Context, object, old runtime.Object) {
	updated, previous := object.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	if s.version.status {
		setOrDelete(updated.Object, "status", previous.Object)
	}
	if !apiequality.Semantic.DeepEqual(withoutMetadata(updated.Object), withoutMetadata(previous.Object)) {
		updated.SetGeneration(previous.GetGeneration() + 1)
	}
}

// setOrDelete copies a field from from to content, or deletes it.
func setOrDelete(content map[string]any, name string, from map[string]any) {
	if value, ok := from[name]; ok {
		content[name] = value
	} else {
		delete(content, name)
	}
}

func withoutMetadata(content map[string]any) map[string]any {
	rest := maps.Clone(content)
	delete(rest, "metadata")
	return rest
}

func (s *strategy) WarningsOnCreate(_ context.Context, object runtime.Object) []string {
	return finalizerWarnings(object.(*unstructured.Unstructured).GetFinalizers(), nil)
}

func (s *strategy) WarningsOnUpdate(_ context.Context, object, old runtime.Object) []string {
	return finalizerWarnings(object.(*unstructured.Unstructured).GetFinalizers(), old.(*unstructured.Unstructured).GetFinalizers())
}

func (s *strategy) Validate(ctx context.Context, object runtime.Object) field.ErrorList {
	created := object.(*unstructured.Unstructured)
	structural, compiled, problem := s.compiled()
	if problem != nil {
		return field.ErrorList{problem}
	}
	errs := validateType(created, s.version.kind)
	if len(errs) == 0 {
		errs = append(errs, metavalidation.ValidateObjectMetaAccessor(created, s.version.of.namespaced, metavalidation.NameIsDNSSubdomain, field.NewPath("metadata"))...)
		errs = append(errs, validation.ValidateCustomResource(nil, created.Object, compiled.object)...)
		errs = append(errs, validateScaleSpec(created.Object, s.version.scale)...)
		errs = append(errs, validateScaleStatus(created.Object, s.version.scale)...)
	}
	errs = append(errs, objectmeta.Validate(nil, created.Object, structural, false)...)
	errs = append(errs, listtype.ValidateListSetsAndMaps(nil, structural, created.Object)...)
	return append(errs, ruleCheck{compiled.rules, structural, created.Object, nil}.run(ctx, errs)...)
}

func (s *strategy) ValidateUpdate(ctx context.Context, object, old runtime.Object) field.ErrorList {
	updated, previous := object.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	structural, compiled, problem := s.compiled()
	if problem != nil {
		return field.ErrorList{problem}
	}
	correlated := common.NewCorrelatedObject(updated.Object, previous.Object, &celmodel.Structural{Structural: structural})
	errs := validateType(updated, s.version.kind)
	if len(errs) == 0 {
		errs = append(errs, metavalidation.ValidateObjectMetaAccessorUpdate(updated, previous, field.NewPath("metadata"))...)
		errs = append(errs, validation.ValidateCustomResourceUpdate(nil, updated.Object, previous.Object, compiled.object, validation.WithRatcheting(correlated))...)
		errs = append(errs, validateScaleSpec(updated.Object, s.version.scale)...)
		errs = append(errs, validateScaleStatus(updated.Object, s.version.scale)...)
	}
	errs = append(errs, objectmeta.Validate(nil, updated.Object, structural, false)...)
	errs = append(errs, newListErrors(structural, updated.Object, previous.Object)...)
	return append(errs, ruleCheck{compiled.rules, structural, updated.Object, previous.Object}.run(ctx, errs, cel.WithRatcheting(correlated))...)
}

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

// newListErrors ratchets the invariants of list types: an object that broke them before may go on doing so.
func newListErrors(structural *structuralschema.Structural, updated, previous map[string]any) field.ErrorList {
	errs := listtype.ValidateListSetsAndMaps(nil, structural, updated)
	if len(errs) == 0 || len(listtype.ValidateListSetsAndMaps(nil, structural, previous)) > 0 {
		return nil
	}
	return errs
}

// ruleCheck is the evaluation of CEL rules on an object.
type ruleCheck struct {
	rules       *cel.Validator // nil without rules
	structural  *structuralschema.Structural
	object, old map[string]any // old is nil on create
}

// run evaluates the rules, unless earlier errors make the results meaningless.
func (c ruleCheck) run(ctx context.Context, found field.ErrorList, options ...cel.Option) field.ErrorList {
	if c.rules == nil {
		return nil
	}
	for _, err := range found {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany, field.ErrorTypeTypeInvalid:
			return field.ErrorList{field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the existing errors to complete validation")}
		}
	}
	var previous any
	if c.old != nil {
		previous = c.old
	}
	errs, _ := c.rules.Validate(ctx, nil, c.structural, c.object, previous, celconfig.RuntimeCELCostBudget, options...)
	return errs
}

// statusStrategy is the update strategy of the status subresource.
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

func (s *statusStrategy) ValidateUpdate(ctx context.Context, object, old runtime.Object) field.ErrorList {
	updated, previous := object.(*unstructured.Unstructured), old.(*unstructured.Unstructured)
	structural, compiled, problem := s.compiled()
	if problem != nil {
		return field.ErrorList{problem}
	}
	correlated := common.NewCorrelatedObject(updated.Object, previous.Object, &celmodel.Structural{Structural: structural})
	errs := validateType(updated, s.version.kind)
	if len(errs) == 0 {
		errs = append(errs, metavalidation.ValidateObjectMetaAccessorUpdate(updated, previous, field.NewPath("metadata"))...)
		errs = append(errs, s.validateStatus(updated, previous, compiled, structural, correlated)...)
		errs = append(errs, validateScaleStatus(updated.Object, s.version.scale)...)
	}
	errs = append(errs, newListErrors(structural, updated.Object, previous.Object)...)
	return append(errs, ruleCheck{compiled.rules, structural, updated.Object, previous.Object}.run(ctx, errs, cel.WithRatcheting(correlated))...)
}

func (s *statusStrategy) validateStatus(updated, previous *unstructured.Unstructured, compiled *validators, structural *structuralschema.Structural, correlated *common.CorrelatedObject) field.ErrorList {
	status, ok := updated.Object["status"]
	if !ok {
		return nil
	}
	var options []validation.ValidationOption
	if structural != nil {
		options = append(options, validation.WithRatcheting(correlated.Key("status")))
	}
	return validation.ValidateCustomResourceUpdate(field.NewPath("status"), status, previous.Object["status"], compiled.status, options...)
}

func (s *statusStrategy) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}
