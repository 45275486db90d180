package schema

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// converter converts objects to typed values as upstream's converter does, but does not validate objects of the Go
// types that the schema was generated from: they cannot violate the schema. This validation, which uses reflection,
// takes more than half of the time of managed fields in a create. Applied configurations have no Go type and are
// validated.
type converter struct {
	managedfields.TypeConverter
	scheme *runtime.Scheme
	parser *typed.Parser
}

// ObjectToTyped implements managedfields.TypeConverter. It validates objects if options do not allow duplicates.
func (c *converter) ObjectToTyped(
	object runtime.Object, options ...typed.ValidationOptions,
) (*typed.TypedValue, error) {
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
