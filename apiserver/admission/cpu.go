package admission

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/request"
)

// WithinCPU limits the CPU time in which a plugin may evaluate all of its CEL expressions for one object. Upstream
// limits the cost of each policy for each parameter, and of the match conditions of each webhook. The time grows faster
// than this cost, because in each step of a loop the CEL library searches all values of the loop. A request that
// exceeds the limit is denied whatever the failure policies are: with failurePolicy Ignore, an expensive policy would
// disable all other policies. While the plugin waits for webhooks, it occupies a thread.
func (p Plugin) WithinCPU(limit time.Duration) Plugin {
	if p.Mutator != nil {
		p.Mutator = cpuMutator{p.Mutator, limit}
	}
	if p.Validator != nil {
		p.Validator = cpuValidator{p.Validator, limit}
	}
	return p
}

type cpuMutator struct {
	Mutator
	limit time.Duration
}

// Admit implements Mutator.
func (m cpuMutator) Admit(ctx context.Context, a *Attributes) error {
	ctx, stop := request.LimitCPU(ctx, m.limit)
	defer stop()
	return withinCPU(ctx, a, m.limit, m.Mutator.Admit(ctx, a))
}

type cpuValidator struct {
	Validator
	limit time.Duration
}

// Validate implements Validator.
func (v cpuValidator) Validate(ctx context.Context, a *Attributes) error {
	ctx, stop := request.LimitCPU(ctx, v.limit)
	defer stop()
	return withinCPU(ctx, a, v.limit, v.Validator.Validate(ctx, a))
}

// withinCPU returns the error of a plugin, or an error if the plugin has used its CPU time.
func withinCPU(ctx context.Context, a *Attributes, limit time.Duration, err error) error {
	if !errors.Is(context.Cause(ctx), request.ErrCPU) {
		return err
	}
	gr := schema.GroupResource{Group: a.Definition.Group, Resource: a.Definition.Plural}
	return apierrors.NewForbidden(gr, a.Name,
		fmt.Errorf("the expressions of admission policies or webhooks take more than %v of CPU time for this object", limit))
}
