package crd

import (
	"fmt"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	structuraldefaulting "k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/apimachinery/pkg/runtime/schema"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
)

// version is one version of a custom resource. Fields of type lazy are built from its schema on first use.
type version struct {
	of         *custom
	kind       schema.GroupVersionKind
	apiVersion string // of objects
	status     bool
	scale      *apiextensionsv1.CustomResourceSubresourceScale
	selectable []apiextensionsv1.SelectableField
	encoded    []byte // JSON of the v1 schema; nil without one

	structure  lazy[*structuralschema.Structural]
	validators lazy[*validators]
}

// validators validate objects of one version.
type validators struct {
	object validation.SchemaValidator
	status validation.SchemaValidator // of the status only; nil without schema
	rules  *cel.Validator             // nil without rules
}

// lazy is a value created on first use.
type lazy[T any] struct {
	once  sync.Once
	value T
	err   error
}

func (l *lazy[T]) get(make func() (T, error)) (T, error) {
	l.once.Do(func() { l.value, l.err = make() })
	return l.value, l.err
}

// structural returns the structural schema with pruned defaults; nil without a schema.
func (v *version) structural() (*structuralschema.Structural, error) {
	return v.structure.get(v.makeStructural)
}

func (v *version) makeStructural() (*structuralschema.Structural, error) {
	if v.encoded == nil {
		return nil, nil
	}
	internal, err := internalSchema(v.encoded)
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
	return v.validators.get(v.makeValidators)
}

func (v *version) makeValidators() (*validators, error) {
	structural, err := v.structural()
	if err != nil {
		return nil, err
	}
	var internal *apiextensions.JSONSchemaProps
	if v.encoded != nil {
		if internal, err = internalSchema(v.encoded); err != nil {
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
