// Package admission is the contract between the registry and those who may change or refuse a write before it
// is stored.
package admission

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/resource"
)

// Operation is what a request does.
type Operation string

const (
	Create Operation = "CREATE"
	Update Operation = "UPDATE"
	Delete Operation = "DELETE"
	// Connect opens a stream or proxies a request; Object holds its options.
	Connect Operation = "CONNECT"
)

// Attributes describe one write. Object is nil when deleting, Old when creating.
type Attributes struct {
	Operation   Operation
	Definition  *resource.Definition
	Version     *resource.Version
	Subresource string
	// Kind is that of Object, or of Old: the resource's own or that of a subresource.
	Kind      schema.GroupVersionKind
	Namespace string
	// Name is empty as long as the server has not generated it, and for each object of a collection that is deleted.
	Name    string
	Object  runtime.Object // internal version; a Mutator may change it
	Old     runtime.Object // internal version; nobody may change it
	Options runtime.Object // of the operation, as clients send them; nil where there are none
	DryRun  bool
	User    user.Info
	// Internal is set for what the server itself writes, which only storage's own stations and those are asked
	// about who guard what the server relies on.
	Internal bool

	annotations  annotations
	reinvocation reinvocation
}

// Mutator may change attributes.Object, or refuse the write with an API status error.
type Mutator interface {
	Admit(ctx context.Context, attributes *Attributes) error
}

// Validator may refuse the write with an API status error. It sees the object as it will be stored.
type Validator interface {
	Validate(ctx context.Context, attributes *Attributes) error
}

// Plugin is one place in the order of admission.
type Plugin struct {
	// Name is that of kube-apiserver, in flags and metrics; empty for what is no plugin there.
	Name string
	// Operations are those the plugin is asked about.
	Operations []Operation
	Mutator    Mutator   // nil if it changes nothing
	Validator  Validator // nil if it has nothing to say of the final object
	// Selector narrows the writes that the plugin is called for; nil: all.
	Selector Selector
	// Internal plugins are asked about what the server itself writes, too.
	Internal bool
}

func (p *Plugin) concerns(a *Attributes) bool {
	return (p.Internal || !a.Internal) && slices.Contains(p.Operations, a.Operation) && (p.Selector == nil || p.Selector.Selects(a))
}

// Selector reports which writes a plugin has to see.
type Selector interface {
	Selects(attributes *Attributes) bool
}

// Reserver holds something outside the object that a write needs, such as an address.
type Reserver interface {
	// Reserve changes attributes.Object, which has its name by now, or refuses the write. In a dry run nothing is held.
	Reserve(ctx context.Context, attributes *Attributes) error
	// Undo gives back what was reserved for a write that failed later.
	Rollback(ctx context.Context, attributes *Attributes)
	// Finish is told of writes that were stored, to release what the former object held.
	Commit(ctx context.Context, attributes *Attributes)
}

// Chain is the admission of one server: the mutators of all plugins in order, then the reservers, then the validators
// of all plugins in order.
type Chain struct {
	Plugins   []Plugin
	Reservers []Reserver
	Metrics   *Metrics // nil: none
}

// Admit runs the mutators, and all of them a second time if one of them asks for it after another has changed the object.
func (c *Chain) Admit(ctx context.Context, attributes *Attributes) error {
	managed := managedFieldsOf(attributes)
	err := c.mutate(ctx, attributes)
	if err == nil && attributes.reinvocation.ShouldReinvoke() {
		attributes.reinvocation.SetIsReinvoke()
		err = c.mutate(ctx, attributes)
	}
	if err == nil {
		managed.restore(ctx)
	}
	return err
}

func (c *Chain) mutate(ctx context.Context, attributes *Attributes) error {
	return c.run(ctx, attributes, stepAdmit, func(p *Plugin) (bool, error) {
		if p.Mutator == nil {
			return false, nil
		}
		return true, p.Mutator.Admit(ctx, attributes)
	})
}

// Validate runs the validators.
func (c *Chain) Validate(ctx context.Context, attributes *Attributes) error {
	return c.run(ctx, attributes, stepValidate, func(p *Plugin) (bool, error) {
		if p.Validator == nil {
			return false, nil
		}
		return true, p.Validator.Validate(ctx, attributes)
	})
}

// run asks the plugins in order until one refuses. ask reports whether there was somebody to ask.
func (c *Chain) run(ctx context.Context, attributes *Attributes, step string, ask func(*Plugin) (bool, error)) (err error) {
	began := c.Metrics.now()
	before := began
	for i := range c.Plugins {
		plugin := &c.Plugins[i]
		if !plugin.concerns(attributes) {
			continue
		}
		var asked bool
		if asked, err = ask(plugin); !asked {
			continue
		}
		now := c.Metrics.now()
		c.Metrics.plugin(plugin.Name, step, attributes.Operation, err != nil, now.Sub(before))
		if before = now; err != nil {
			break
		}
	}
	if !attributes.Internal {
		c.Metrics.step(step, attributes.Operation, err != nil, c.Metrics.now().Sub(began))
		attributes.audit(ctx)
	}
	return err
}

// Reserve runs the reservers. When one refuses, what the earlier ones did is undone.
func (c *Chain) Reserve(ctx context.Context, attributes *Attributes) error {
	for i, reserver := range c.Reservers {
		if err := reserver.Reserve(ctx, attributes); err != nil {
			undo(ctx, c.Reservers[:i], attributes)
			return err
		}
	}
	return nil
}

// Undo undoes the effects of Reserve after the write has failed.
func (c *Chain) Rollback(ctx context.Context, attributes *Attributes) {
	undo(ctx, c.Reservers, attributes)
}

// Finish tells the reservers that the write is stored.
func (c *Chain) Commit(ctx context.Context, attributes *Attributes) {
	for _, reserver := range c.Reservers {
		reserver.Commit(ctx, attributes)
	}
}

func undo(ctx context.Context, reservers []Reserver, attributes *Attributes) {
	for _, reserver := range slices.Backward(reservers) {
		reserver.Rollback(ctx, attributes)
	}
}
