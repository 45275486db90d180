package crd

import (
	"strings"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"quorate.dev/apiserver/codec"
)

// usesQuantities reports whether a validation rule in a schema parses quantities, with quantity() or isQuantity().
func usesQuantities(s *structuralschema.Structural) bool {
	if s == nil {
		return false
	}
	if parsesQuantities(s) || usesQuantities(s.Items) ||
		s.AdditionalProperties != nil && usesQuantities(s.AdditionalProperties.Structural) {
		return true
	}
	for _, property := range s.Properties {
		if usesQuantities(&property) {
			return true
		}
	}
	return false
}

// parsesQuantities reports whether a rule of the node itself calls quantity() or isQuantity(). A rule can read the
// values at and below its node.
func parsesQuantities(s *structuralschema.Structural) bool {
	for _, rule := range s.XValidations {
		if strings.Contains(rule.Rule, "uantity") || strings.Contains(rule.MessageExpression, "uantity") {
			return true
		}
	}
	return false
}

// quantitySearch looks for strings that a rule may parse as a quantity with too many digits. It searches only at and
// below nodes whose rules parse quantities, because other strings can look like a quantity: 7e12345 may be the short
// hash of a commit.
//
// Without this check, one call of quantity() could take minutes, because the time grows with the square of the digits
// (package codec), in a single step that no limit of CEL interrupts.
type quantitySearch struct {
	schema *structuralschema.Structural // schema of the value; nil: unknown, so that no rule can read the value
	within bool                         // the value is below a node whose rules parse quantities
}

// find returns the path of the first such string in value that differs from the old value at the same path, or nil.
// Unchanged strings are accepted, because they were checked when they were stored, or stored before the rule existed.
// Elements of lists are compared by index, so that moving a string within a list counts as a change.
func (q quantitySearch) find(path *field.Path, value, old any) *field.Path {
	if q.schema == nil {
		return nil
	}
	q.within = q.within || parsesQuantities(q.schema)
	switch value := value.(type) {
	case string:
		if q.within && value != old && codec.QuantityDigits([]byte(value)) > codec.MaxQuantityDigits {
			return path
		}
	case map[string]any:
		old, _ := old.(map[string]any)
		for k, item := range value {
			if path == nil && k == "metadata" { // of the metadata, rules can read only names
				continue
			}
			if found := q.property(k).find(path.Child(k), item, old[k]); found != nil {
				return found
			}
		}
	case []any:
		old, _ := old.([]any)
		items := quantitySearch{q.schema.Items, q.within}
		for i, item := range value {
			var before any
			if i < len(old) {
				before = old[i]
			}
			if found := items.find(path.Index(i), item, before); found != nil {
				return found
			}
		}
	}
	return nil
}

// property returns the search in a property of an object.
func (q quantitySearch) property(name string) quantitySearch {
	if property, ok := q.schema.Properties[name]; ok {
		return quantitySearch{&property, q.within}
	}
	if q.schema.AdditionalProperties != nil {
		return quantitySearch{q.schema.AdditionalProperties.Structural, q.within}
	}
	return quantitySearch{}
}
