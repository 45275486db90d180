package crd

import (
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apimachinery/pkg/runtime/schema"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"quorate.dev/apiserver/deflate"
	"quorate.dev/apiserver/lazy"
)

// version is one version of a custom resource. The lazy.Values are built from the schema on first use and dropped when
// they are idle.
type version struct {
	of         *custom
	kind       schema.GroupVersionKind
	apiVersion string                                          // apiVersion of objects, GROUP/VERSION
	status     bool                                            // the status is a subresource
	scale      *apiextensionsv1.CustomResourceSubresourceScale // nil: no scale subresource
	selectable []apiextensionsv1.SelectableField
	schema     *deflate.Part // compressed JSON of the v1 schema; nil if there is none

	structure  lazy.Value[*structuralschema.Structural]
	validators lazy.Value[*validators]
}

// validators validate objects of one version. They are immutable and safe for concurrent use.
type validators struct {
	object *schemaValidator
	status *schemaValidator // validates only the status; nil if there is no schema for it
	rules  *cel.Validator   // nil if the schema has no rules
	// quantities is set if rules parse quantities.
	quantities bool
}

// structural returns the structural schema with pruned defaults. It returns nil if the version has no schema: every
// field is then unknown and pruned. The caller must not change the result, which all requests share.
func (v *version) structural() (*structuralschema.Structural, error) {
	return v.structure.Get(v.of.idle, v.makeStructural)
}

// makeStructural builds the structural schema. PruneDefaults removes fields from defaults that the schema does not
// have, so that defaulting cannot add what pruning would remove.
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
		return structural, nil // with spec.preserveUnknownFields, the schema may be non-structural
	}
	if err != nil {
		return nil, fmt.Errorf("schema of %s is not structural: %w", v.kind, err)
	}
	if err := structuraldefaulting.PruneDefaults(structural); err != nil {
		return nil, fmt.Errorf("prune defaults of %s: %w", v.kind, err)
	}
	return structural, nil
}

// validation returns the validators. The first caller compiles them, which takes longer the more CEL rules the schema
// has; concurrent requests of the version wait.
func (v *version) validation() (*validators, error) {
	return v.validators.Get(v.of.idle, v.makeValidators)
}

// makeValidators compiles the validators. The rules get upstream's limit of the cost of one rule (PerCallLimit).
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
	result := &validators{
		rules: cel.NewValidator(structural, true, celconfig.PerCallLimit), quantities: usesQuantities(structural),
	}
	if result.object, err = newSchemaValidator(internal); err != nil {
		return nil, fmt.Errorf("compile schema of %s: %w", v.kind, err)
	}
	if !v.status || internal == nil {
		return result, nil
	}
	if status, ok := internal.Properties["status"]; ok {
		if result.status, err = newSchemaValidator(&status); err != nil {
			return nil, fmt.Errorf("compile status schema of %s: %w", v.kind, err)
		}
	}
	return result, nil
}
