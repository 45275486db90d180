package admission_test

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/admission"
)

// ownerLabel sets a label on new objects, and rejects updates that remove it.
type ownerLabel struct{}

func (ownerLabel) Admit(_ context.Context, a *admission.Attributes) error {
	object, err := meta.Accessor(a.Object)
	if err != nil || a.Operation != admission.Create {
		return err
	}
	labels := object.GetLabels()
	if labels == nil {
		labels = map[string]string{}
	}
	labels["owner"] = "team-a"
	object.SetLabels(labels)
	return nil
}

func (ownerLabel) Validate(_ context.Context, a *admission.Attributes) error {
	object, err := meta.Accessor(a.Object)
	if err != nil {
		return err
	}
	if object.GetLabels()["owner"] == "" {
		return errors.New("the label owner is required")
	}
	return nil
}

func ExamplePlugin() {
	chain := admission.Chain{Plugins: []admission.Plugin{{
		Name:       "OwnerLabel",
		Operations: []admission.Operation{admission.Create, admission.Update},
		Mutator:    ownerLabel{},
		Validator:  ownerLabel{},
	}}}
	ctx := context.Background()

	create := &admission.Attributes{Operation: admission.Create, Object: &metav1.PartialObjectMetadata{}}
	fmt.Println(chain.Admit(ctx, create), chain.Validate(ctx, create))

	update := &admission.Attributes{
		Operation: admission.Update, Object: &metav1.PartialObjectMetadata{}, Old: create.Object,
	}
	fmt.Println(chain.Admit(ctx, update), chain.Validate(ctx, update))
	// Output:
	// <nil> <nil>
	// <nil> the label owner is required
}

// counter reserves one unit per new object.
type counter struct{ used *int }

func (c counter) Allocates(schema.GroupResource) bool { return true }

func (c counter) Reserve(_ context.Context, a *admission.Attributes) error {
	if !a.DryRun {
		*c.used++
	}
	return nil
}

func (c counter) Rollback(_ context.Context, a *admission.Attributes) {
	if !a.DryRun {
		*c.used--
	}
}

func (c counter) Commit(_ context.Context, a *admission.Attributes) {
	if a.Operation == admission.Delete {
		*c.used--
	}
}

// A write that fails after Reserve is rolled back; a stored deletion is committed.
func ExampleReserver() {
	used := 0
	chain := admission.Chain{Reservers: []admission.Reserver{counter{&used}}}
	ctx := context.Background()
	create := &admission.Attributes{Operation: admission.Create}

	fmt.Println(chain.Reserve(ctx, create), used)
	chain.Rollback(ctx, create)
	fmt.Println(used)

	fmt.Println(chain.Reserve(ctx, create), used)
	chain.Commit(ctx, &admission.Attributes{Operation: admission.Delete})
	fmt.Println(used)
	// Output:
	// <nil> 1
	// 0
	// <nil> 1
	// 0
}
