package strategy

import (
	"context"

	"k8s.io/apimachinery/pkg/api/operation"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"

	"quorate.dev/apiserver/request"
)

// declarativeCreate is a boundedCreate for a strategy with declarative validation. rest.BeforeCreate validates
// declaratively only if the strategy that it gets implements rest.DeclarativeValidationStrategy, so that strategies
// without declarative validation need another wrapper.
type declarativeCreate struct {
	*boundedCreate
	declaration
}

// Validate returns all errors of the handwritten validation. ValidateDeclaratively, which runs afterwards, limits the
// number of errors.
func (s *declarativeCreate) Validate(ctx context.Context, object runtime.Object) field.ErrorList {
	return s.RESTCreateStrategy.Validate(ctx, object)
}

// declarativeUpdate is a boundedUpdate for a strategy with declarative validation.
type declarativeUpdate struct {
	*boundedUpdate
	declaration
}

// ValidateUpdate returns all errors of the handwritten validation. ValidateDeclaratively, which runs afterwards,
// limits the number of errors.
func (s *declarativeUpdate) ValidateUpdate(ctx context.Context, object, old runtime.Object) field.ErrorList {
	return s.RESTUpdateStrategy.ValidateUpdate(ctx, object, old)
}

// maxCompared is the number of handwritten errors up to which declarative validation runs. A Pod in which every field
// is set, such as upstream's sample, has 249 handwritten errors.
const maxCompared = 3 * request.MaxErrors

// declaration is the declarative validation of a strategy with at most request.MaxErrors validation errors.
type declaration struct {
	strategy rest.DeclarativeValidationStrategy
	omitted  *int // set to the number of errors that ValidateDeclaratively has left out
}

var (
	_ rest.DeclarativeValidationStrategy = (*declarativeCreate)(nil)
	_ rest.DeclarativeValidationStrategy = (*declarativeUpdate)(nil)
)

// ValidateDeclaratively adds the errors of the declarative validation to errs, which has the errors of the
// handwritten validation, and limits the number of errors. Declarative errors replace handwritten errors with equal
// fields and origins, so that errs must be complete. Upstream compares all handwritten errors with each other and
// with all declarative errors; an object with more than maxCompared handwritten errors is therefore refused without
// declarative validation.
func (d declaration) ValidateDeclaratively(
	ctx context.Context, object, old runtime.Object, errs field.ErrorList, operation operation.Type,
	config rest.DeclarativeValidationConfig,
) field.ErrorList {
	if len(errs) <= maxCompared {
		errs = d.strategy.ValidateDeclaratively(ctx, object, old, errs, operation, config)
	}
	errs, *d.omitted = request.Bound(errs)
	return errs
}

// DeclarativeValidationConfig implements rest.DeclarativeValidationStrategy.
func (d declaration) DeclarativeValidationConfig(
	ctx context.Context, object, old runtime.Object,
) rest.DeclarativeValidationConfig {
	return d.strategy.DeclarativeValidationConfig(ctx, object, old)
}
