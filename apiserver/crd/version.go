package crd

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"quorate.dev/apiserver/deflate"
	"quorate.dev/apiserver/lazy"
)

// version is one version of a custom resource. Fields of type lazy.Value are built from its schema on first use
// and dropped when idle.
type version struct {
	of         *custom
	kind       schema.GroupVersionKind
	apiVersion string // of objects
	status     bool
	scale      *apiextensionsv1.CustomResourceSubresourceScale
	selectable []apiextensionsv1.SelectableField
	schema     *deflate.Part // compressed JSON of the v1 schema; nil without one

	structure  lazy.Value[*structuralschema.Structural]
	validators lazy.Value[*validators]
}

// validators validate objects of one version.
type validators struct {
	object validation.SchemaValidator
	status validation.SchemaValidator // of the status only; nil without schema
	rules  *cel.Validator             // nil without rules
}

// structural returns the structural schema with pruned defaults; nil without a schema.
func (v *version) structural() (*structuralschema.Structural, error) {
	return v.structure.Get(v.of.idle, v.makeStructural)
}

func (v *version) makeStructural() (*structuralschema.Structural, error) {
	if v.schema == nil {
		return nil, nil
	}
	internal, err := v.internalSchema()
	if err != nil {
		return nil, err
	}
	structural, err := structuralschema.NewStructural(internal)
	if v.of.preserve {
		return structural, nil // such schemas may be non-structural
	}
	if err != nil {
		return nil, fmt.Errorf("schema of %s is not structural: %w", v.kind, err)
	}
	if err := structuraldefaulting.PruneDefaults(structural); err != nil {
		return nil, fmt.Errorf("prune defaults of %s: %w", v.kind, err)
	}
	return structural, nil
}

// validation returns the validators.
func (v *version) validation() (*validators, error) {
	return v.validators.Get(v.of.idle, v.makeValidators)
}

func (v *version) makeValidators() (*validators, error) {
	structural, err := v.structural()
	if err != nil {
		return nil, err
	}
	var internal *apiextensions.JSONSchemaProps
	if v.schema != nil {
		if internal, err = v.internalSchema(); err != nil {
			return nil, err
		}
	}
	result := &validators{rules: cel.NewValidator(structural, true, celconfig.PerCallLimit)}
	if result.object, _, err = validation.NewSchemaValidator(internal); err != nil {
		return nil, fmt.Errorf("compile schema of %s: %w", v.kind, err)
	}
	if !v.status || internal == nil {
		return result, nil
	}
	if status, ok := internal.Properties["status"]; ok {
		if result.status, _, err = validation.NewSchemaValidator(&status); err != nil {
			return nil, fmt.Errorf("compile status schema of %s: %w", v.kind, err)
		}
	}
	return result, nil
}
