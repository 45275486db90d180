package admission

import (
	"context"
	"errors"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// recorder records the calls of a plugin or reserver.
type recorder struct {
	name   string
	log    *[]string
	refuse error
}

func (r recorder) record(call string) error {
	*r.log = append(*r.log, r.name+" "+call)
	return r.refuse
}

func (r recorder) Admit(context.Context, *Attributes) error    { return r.record("admit") }
func (r recorder) Validate(context.Context, *Attributes) error { return r.record("validate") }
func (r recorder) Allocates(of schema.GroupResource) bool      { return of.Resource == r.name }
func (r recorder) Reserve(context.Context, *Attributes) error  { return r.record("reserve") }
func (r recorder) Rollback(context.Context, *Attributes)       { _ = r.record("rollback") }
func (r recorder) Commit(context.Context, *Attributes)         { _ = r.record("commit") }

func plugin(s recorder, operations ...Operation) Plugin {
	return Plugin{Name: s.name, Operations: operations, Mutator: s, Validator: s}
}

func TestRejectedReserveRollsBack(t *testing.T) {
	var log []string
	refusal := errors.New("no")
	chain := Chain{
		Reservers: []Reserver{
			recorder{"a", &log, nil}, recorder{"b", &log, nil}, recorder{"c", &log, refusal}, recorder{"d", &log, nil},
		},
	}
	if err := chain.Reserve(t.Context(), &Attributes{}); !errors.Is(err, refusal) {
		t.Errorf("got %v", err)
	}
	if want := []string{"a reserve", "b reserve", "c reserve", "b rollback", "a rollback"}; !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
}

func TestFirstErrorEndsAStep(t *testing.T) {
	var log []string
	refusal := errors.New("no")
	chain := Chain{Plugins: []Plugin{
		plugin(recorder{"a", &log, nil}, Create), plugin(recorder{"b", &log, refusal}, Create),
		plugin(recorder{"c", &log, nil}, Create),
	}}
	for _, phase := range []func(context.Context, *Attributes) error{chain.Admit, chain.Validate} {
		if err := phase(t.Context(), &Attributes{Operation: Create}); !errors.Is(err, refusal) {
			t.Errorf("got %v", err)
		}
	}
	if want := []string{"a admit", "b admit", "a validate", "b validate"}; !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
}

func TestPluginsSeeOnlyTheirOperations(t *testing.T) {
	var log []string
	guard := plugin(recorder{"guard", &log, nil}, Delete)
	guard.Internal = true
	mutator := Plugin{Operations: []Operation{Create, Delete}, Mutator: recorder{"mutator", &log, nil}}
	chain := Chain{Plugins: []Plugin{guard, mutator}}
	for _, attributes := range []*Attributes{
		{Operation: Create}, {Operation: Delete}, {Operation: Delete, Internal: true}, {Operation: Update},
	} {
		if err := errors.Join(chain.Admit(t.Context(), attributes), chain.Validate(t.Context(), attributes)); err != nil {
			t.Error(err)
		}
	}
	want := []string{"mutator admit", "guard admit", "mutator admit", "guard validate", "guard admit", "guard validate"}
	if !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
}

func TestCommitAndRollback(t *testing.T) {
	var log []string
	chain := Chain{Reservers: []Reserver{recorder{"a", &log, nil}, recorder{"b", &log, nil}}}
	chain.Commit(t.Context(), &Attributes{})
	chain.Rollback(t.Context(), &Attributes{})
	if want := []string{"a commit", "b commit", "b rollback", "a rollback"}; !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
}

// TestAllocates: an update has to start from the stored object if any of the reservers allocates for its resource.
func TestAllocates(t *testing.T) {
	chain := Chain{Reservers: []Reserver{recorder{name: "services"}, recorder{name: "ipaddresses"}}}
	for plural, want := range map[string]bool{"services": true, "ipaddresses": true, "pods": false} {
		if got := chain.Allocates(schema.GroupResource{Resource: plural}); got != want {
			t.Errorf("%s: got %t, want %t", plural, got, want)
		}
	}
}

func TestAnnotationsAreNotOverwritten(t *testing.T) {
	var a Attributes
	if err := errors.Join(a.AddAnnotation("x/y", "1"), a.AddAnnotation("x/y", "1")); err != nil {
		t.Error(err)
	}
	if err := a.AddAnnotation("x/y", "2"); err == nil {
		t.Error("an annotation was overwritten")
	}
}
