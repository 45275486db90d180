// Package admission is the contract between the registry and those who may change or refuse a write before it
// is stored.
package admission

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"

	"quorate.dev/apiserver/resource"
)

// Operation is what a write does.
type Operation string

const (
	Create Operation = "CREATE"
	Update Operation = "UPDATE"
	Delete Operation = "DELETE"
	// Connect hands a request on to a kubelet, a pod or a service. Object are its options.
	Connect Operation = "CONNECT"
)

// Attributes describe one write. Object is nil when deleting, Old when creating.
type Attributes struct {
	Operation   Operation
	Definition  *resource.Definition
	Version     *resource.Version
	Subresource string
	Namespace   string
	Name        string
	Object      runtime.Object // hub form; a Mutator may change it
	Old         runtime.Object // hub form; nobody may change it
	DryRun      bool
	User        user.Info
}

// Mutator may change attributes.Object, or refuse the write with an API status error. Its effects outside the
// object, if any, are undone by Undo when the write fails later.
type Mutator interface {
	Admit(ctx context.Context, attributes *Attributes) error
}

// Undoer is a Mutator with effects outside the object, such as an allocated address.
type Undoer interface {
	Undo(ctx context.Context, attributes *Attributes)
}

// Finisher is told of writes that were stored, for instance to release what a deleted object held.
type Finisher interface {
	Finish(ctx context.Context, attributes *Attributes)
}

// Validator may refuse the write with an API status error. It sees the object as it will be stored.
type Validator interface {
	Validate(ctx context.Context, attributes *Attributes) error
}

// Chain is the admission of one server: mutators in order, then validators in order.
type Chain struct {
	Mutators   []Mutator
	Validators []Validator
}

// Admit runs the mutators. When one refuses, what the earlier ones did is undone.
func (c *Chain) Admit(ctx context.Context, attributes *Attributes) error {
	for i, mutator := range c.Mutators {
		if err := mutator.Admit(ctx, attributes); err != nil {
			undo(ctx, c.Mutators[:i], attributes)
			return err
		}
	}
	return nil
}

// Validate runs the validators.
func (c *Chain) Validate(ctx context.Context, attributes *Attributes) error {
	for _, validator := range c.Validators {
		if err := validator.Validate(ctx, attributes); err != nil {
			return err
		}
	}
	return nil
}

// Undo undoes the effects of Admit after the write has failed.
func (c *Chain) Undo(ctx context.Context, attributes *Attributes) {
	undo(ctx, c.Mutators, attributes)
}

// Finish tells those who want to know that the write is stored.
func (c *Chain) Finish(ctx context.Context, attributes *Attributes) {
	for _, mutator := range c.Mutators {
		if finisher, ok := mutator.(Finisher); ok {
			finisher.Finish(ctx, attributes)
		}
	}
}

func undo(ctx context.Context, mutators []Mutator, attributes *Attributes) {
	for i := len(mutators) - 1; i >= 0; i-- {
		if undoer, ok := mutators[i].(Undoer); ok {
			undoer.Undo(ctx, attributes)
		}
	}
}
