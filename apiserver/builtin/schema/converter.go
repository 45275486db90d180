package schema

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/typed"
	"sigs.k8s.io/structured-merge-diff/v6/value"
)

// converter makes typed values as upstream's converter does, but looks at no object that cannot be other than its schema
// says: one of a Go type that the schema was generated from. Looking at it, field by field and by reflection, is more
// than half of what managed fields cost in a create. What a client applies is not of a Go type, and is validated.
type converter struct {
	managedfields.TypeConverter
	scheme *runtime.Scheme
	parser *typed.Parser
}

// ObjectToTyped implements managedfields.TypeConverter. Where duplicates are not allowed it is to be found out whether
// there are any.
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
