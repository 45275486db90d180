package schema

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// converter converts objects to typed values like upstream's converter, but skips the validation of objects whose Go
// type the schema was generated from: they cannot violate it. That validation, by reflection, takes more than half of
// the time of managed fields in a create. Applied objects are not of a Go type and are validated.
type converter struct {
	managedfields.TypeConverter
	scheme *runtime.Scheme
	parser *typed.Parser
}

// ObjectToTyped implements managedfields.TypeConverter. Objects are validated if duplicates are not allowed.
func (c *converter) ObjectToTyped(object runtime.Object, options ...typed.ValidationOptions) (*typed.TypedValue, error) {
	if _, untyped := object.(runtime.Unstructured); untyped || !slices.Contains(options, typed.AllowDuplicates) {
		return c.TypeConverter.ObjectToTyped(object, options...)
	}
	name, err := c.scheme.ToOpenAPIDefinitionName(object.GetObjectKind().GroupVersionKind())
	if err != nil {
		return nil, err
	}
	fields, err := value.NewValueReflect(object)
	if err != nil {
		return nil, err
	}
	parsed := c.parser.Type(name)
	return typed.AsTypedUnvalidated(fields, parsed.Schema, parsed.TypeRef), nil
}
