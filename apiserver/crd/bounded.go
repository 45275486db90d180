package crd

import (
	"context"
	"reflect"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kube-openapi/pkg/validation/strfmt"
	"k8s.io/kube-openapi/pkg/validation/validate"
)

// maxViolations is the approximate number of schema violations after which the validation of an object stops. The
// validation library compares each violation with all earlier ones: without a limit, a list of 200,000 invalid elements
// takes minutes of CPU.
const maxViolations = 1000

// schemaValidator validates objects with a schema in the same way as upstream's validator, but stops after about
// maxViolations violations.
type schemaValidator struct {
	schema *spec.Schema
	// upstream is used for ratcheting only, which has to compare all violations of the new and the old object.
	upstream validation.SchemaValidator
}

// newSchemaValidator compiles a schema. For a nil schema, it returns nil, which accepts every object.
func newSchemaValidator(props *apiextensions.JSONSchemaProps) (*schemaValidator, error) {
	upstream, schema, err := validation.NewSchemaValidator(props)
	if err != nil {
		return nil, err
	}
	return &schemaValidator{schema: schema, upstream: upstream}, nil
}

// within returns the validator for a request. It stops with an error when the request's context ends. A nil validator
// accepts every object.
func (v *schemaValidator) within(ctx context.Context) validation.SchemaValidator {
	if v == nil {
		return nil
	}
	return requestValidator{v, ctx}
}

// requestValidator is the validator of one request.
type requestValidator struct {
	*schemaValidator
	ctx context.Context //nolint:containedctx // upstream's interface passes no context
}

var _ validation.SchemaValidator = requestValidator{}

// Validate implements validation.SchemaValidator.
func (v requestValidator) Validate(value any, _ ...validation.ValidationOption) *validate.Result {
	result, _ := v.validate(value)
	return result
}

// ValidateUpdate implements validation.SchemaValidator. Violations in unchanged parts of the object are tolerated
// (ratcheting validation). Most updates are valid and validated once; only an object with violations is validated a
// second time by upstream's RatchetingSchemaValidator, which compares each part with its old value.
func (v requestValidator) ValidateUpdate(updated, old any, options ...validation.ValidationOption) *validate.Result {
	result, isComplete := v.validate(updated)
	if result.IsValid() || v.ctx.Err() != nil {
		return result
	}
	// validate has stopped early, so that the result lacks violations that ratcheting must compare. An old object with
	// that many violations exists only if its definition has changed since.
	if !isComplete && v.Validate(old).IsValid() {
		return result
	}
	return v.upstream.ValidateUpdate(updated, old, options...)
}

// validate returns the violations of a value. isComplete reports whether these are all violations, because it did not
// stop early.
func (v requestValidator) validate(value any) (result *validate.Result, isComplete bool) {
	b := &boundedValidation{ctx: v.ctx}
	result = b.child(v.schema, v.schema, "", strfmt.Default).Validate(value)
	if err := v.ctx.Err(); err != nil {
		result.AddErrors(err)
		return result, false
	}
	return result, b.violations < maxViolations
}

// boundedValidation is the validation of one object.
type boundedValidation struct {
	ctx        context.Context //nolint:containedctx // upstream's interface passes no context
	violations int             // number of violations found, except within alternatives such as anyOf
}

// option makes an upstream validator call child for the elements and properties of a value. The validators of
// alternatives, such as anyOf, do not inherit the option: an object that violates one alternative may satisfy another,
// so that these violations must not be counted.
func (b *boundedValidation) option(options *validate.SchemaValidatorOptions) {
	options.NewValidatorForIndex = func(
		_ int, s *spec.Schema, root any, path string, formats strfmt.Registry, more ...validate.Option,
	) validate.ValueValidator {
		return b.child(s, root, path, formats, more...)
	}
	options.NewValidatorForField = func(
		_ string, s *spec.Schema, root any, path string, formats strfmt.Registry, more ...validate.Option,
	) validate.ValueValidator {
		return b.child(s, root, path, formats, more...)
	}
}

// child returns the validator for a part of the object.
func (b *boundedValidation) child(
	s *spec.Schema, root any, path string, formats strfmt.Registry, options ...validate.Option,
) validate.ValueValidator {
	if b.violations >= maxViolations || b.ctx.Err() != nil {
		return skippedValidator{}
	}
	return &countingValidator{b, s, root, path, formats, append(options, b.option)}
}

// countingValidator validates one part of an object and counts its violations. Upstream's validator of the part calls
// child for the elements and properties of the part, so that each part has a countingValidator, and the count is known
// while the object is being validated.
type countingValidator struct {
	of      *boundedValidation
	schema  *spec.Schema
	root    any
	path    string
	formats strfmt.Registry
	options []validate.Option
}

// SetPath implements validate.ValueValidator.
func (c *countingValidator) SetPath(path string) { c.path = path }

// Applies implements validate.ValueValidator.
func (c *countingValidator) Applies(any, reflect.Kind) bool { return true }

// Validate implements validate.ValueValidator.
func (c *countingValidator) Validate(value any) *validate.Result {
	// The count rises from the innermost parts to the outermost: a part whose children have counted adds nothing, because
	// its result contains their violations. Violations that the part itself adds to theirs are then not counted, so that
	// the number is approximate, as maxViolations says.
	before := c.of.violations
	result := validate.NewSchemaValidator(c.limited(value), c.root, c.path, c.formats, c.options...).Validate(value)
	if c.of.violations == before { // no part of the value has counted these violations
		c.of.violations += len(result.Errors)
	}
	return result
}

// limited returns the schema for a value. If too many required properties are missing, the result requires only some of
// them.
func (c *countingValidator) limited(value any) *spec.Schema {
	object, ok := value.(map[string]any)
	if !ok || len(c.schema.Required) <= maxViolations {
		return c.schema
	}
	var missing []string
	for _, name := range c.schema.Required {
		if _, ok := object[name]; !ok && len(missing) < maxViolations {
			missing = append(missing, name)
		}
	}
	limited := *c.schema
	limited.Required = missing
	return &limited
}

// skippedValidator replaces the validators of the remaining parts after too many violations. It finds no violations.
type skippedValidator struct{}

// SetPath implements validate.ValueValidator.
func (skippedValidator) SetPath(string) {}

// Applies implements validate.ValueValidator.
func (skippedValidator) Applies(any, reflect.Kind) bool { return true }

// Validate implements validate.ValueValidator.
func (skippedValidator) Validate(any) *validate.Result { return &validate.Result{} }
