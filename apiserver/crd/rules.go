package crd

import (
	"context"
	"errors"
	"fmt"
	"time"

	structuralschema "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/request"
)

// maxRuleCPU is the CPU time limit for all rules of an object. Upstream's cost limit is chosen so that the rules take
// about one second; twice as much permits the same objects on a slower machine. A time limit is necessary in addition,
// because the time grows faster than the cost: in each step of a loop, the CEL library searches all values of the loop,
// and each evaluation has a constant overhead, so that an object within the cost limit can take minutes.
const maxRuleCPU = 2 * time.Second

// ruleCheck evaluates the CEL rules of a schema on one object.
type ruleCheck struct {
	compiled    *validators
	structural  *structuralschema.Structural
	object, old map[string]any // old is nil on create
}

// run evaluates the rules. It skips them if found has errors that make their results meaningless, for example a wrong
// type, as upstream's hasBlockingErr does. The limit applies to each object and to CPU time, so that a busy machine
// does not change the result; the goroutine is locked to its thread during the evaluation.
func (c ruleCheck) run(ctx context.Context, found field.ErrorList, options ...cel.Option) field.ErrorList {
	if c.compiled.rules == nil {
		return nil
	}
	for _, err := range found {
		switch err.Type {
		case field.ErrorTypeNotSupported, field.ErrorTypeRequired, field.ErrorTypeTooLong, field.ErrorTypeTooMany,
			field.ErrorTypeTypeInvalid:
			return field.ErrorList{
				field.Invalid(nil, nil, "some validation rules were not checked because the object was invalid; correct the "+
					"existing errors to complete validation"),
			}
		}
	}
	if c.compiled.quantities {
		if path := (quantitySearch{schema: c.structural}).find(nil, c.object, previousOf(c.old)); path != nil {
			return field.ErrorList{field.Invalid(path, nil, fmt.Sprintf(
				"a rule parses quantities, which must not have more than %d digits when their exponents are written out",
				codec.MaxQuantityDigits))}
		}
	}
	ctx, stop := request.LimitCPU(ctx, maxRuleCPU)
	defer stop()
	return c.evaluate(ctx, options)
}

// previousOf returns an old object as an interface value. It converts a nil map, which means create, to an untyped nil.
func previousOf(old map[string]any) any {
	if old == nil {
		return nil
	}
	return old
}

// evaluate evaluates the rules until the context ends. If the request's context ends, evaluate returns no errors,
// because the write fails with the error of the context anyway.
func (c ruleCheck) evaluate(ctx context.Context, options []cel.Option) (errs field.ErrorList) {
	defer func() {
		switch cause := recover(); cause {
		case nil:
		case errStopped:
			errs = nil
			if errors.Is(context.Cause(ctx), request.ErrCPU) {
				errs = field.ErrorList{field.Invalid(nil, nil, fmt.Sprintf(
					"the validation rules were not checked because they take more than %v of CPU time", maxRuleCPU))}
			}
		default:
			panic(cause)
		}
	}()
	errs, _ = c.compiled.rules.Validate(ruleContext{ctx}, nil, c.structural, c.object, previousOf(c.old),
		celconfig.RuntimeCELCostBudget, options...)
	if ctx.Err() != nil {
		panic(errStopped)
	}
	return errs
}

// errStopped is the value with which ruleContext panics to end the evaluation of rules.
var errStopped = errors.New("the evaluation of rules has been stopped")

// ruleContext is the context for the rules of one object. Upstream calls Done before each evaluation of a rule, but the
// returned channel only ends the comprehensions inside a rule. Therefore Done panics after the context has ended, which
// ends the evaluation of all rules.
type ruleContext struct{ context.Context } //nolint:containedctx // it is a context

// Done implements context.Context.
func (c ruleContext) Done() <-chan struct{} {
	if c.Err() != nil {
		panic(errStopped)
	}
	return c.Context.Done()
}
