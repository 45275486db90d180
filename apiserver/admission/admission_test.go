package admission

import (
	"context"
	"errors"
	"slices"
	"testing"
)

// station records what is asked of it.
type station struct {
	name   string
	log    *[]string
	refuse error
}

func (s station) note(what string) error {
	*s.log = append(*s.log, s.name+" "+what)
	return s.refuse
}

func (s station) Admit(context.Context, *Attributes) error    { return s.note("admit") }
func (s station) Validate(context.Context, *Attributes) error { return s.note("validate") }
func (s station) Reserve(context.Context, *Attributes) error  { return s.note("reserve") }
func (s station) Rollback(context.Context, *Attributes)       { _ = s.note("undo") }
func (s station) Commit(context.Context, *Attributes)         { _ = s.note("finish") }

func plugin(s station, operations ...Operation) Plugin {
	return Plugin{Name: s.name, Operations: operations, Mutator: s, Validator: s}
}

func TestRefusalUndoesWhatWasReserved(t *testing.T) {
	var log []string
	refusal := errors.New("no")
	chain := Chain{Reservers: []Reserver{station{"a", &log, nil}, station{"b", &log, nil}, station{"c", &log, refusal}, station{"d", &log, nil}}}
	if err := chain.Reserve(t.Context(), &Attributes{}); !errors.Is(err, refusal) {
		t.Errorf("got %v", err)
	}
	if want := []string{"a reserve", "b reserve", "c reserve", "b undo", "a undo"}; !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
}

func TestFirstRefusalEndsAPhase(t *testing.T) {
	var log []string
	refusal := errors.New("no")
	chain := Chain{Plugins: []Plugin{
		plugin(station{"a", &log, nil}, Create), plugin(station{"b", &log, refusal}, Create), plugin(station{"c", &log, nil}, Create),
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

func TestPluginsAreAskedAboutWhatConcernsThem(t *testing.T) {
	var log []string
	guard := plugin(station{"guard", &log, nil}, Delete)
	guard.Internal = true
	mutator := Plugin{Operations: []Operation{Create, Delete}, Mutator: station{"mutator", &log, nil}}
	chain := Chain{Plugins: []Plugin{guard, mutator}}
	for _, attributes := range []*Attributes{{Operation: Create}, {Operation: Delete}, {Operation: Delete, Internal: true}, {Operation: Update}} {
		if err := errors.Join(chain.Admit(t.Context(), attributes), chain.Validate(t.Context(), attributes)); err != nil {
			t.Error(err)
		}
	}
	want := []string{"mutator admit", "guard admit", "mutator admit", "guard validate", "guard admit", "guard validate"}
	if !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
}

func TestFinish(t *testing.T) {
	var log []string
	chain := Chain{Reservers: []Reserver{station{"a", &log, nil}, station{"b", &log, nil}}}
	chain.Commit(t.Context(), &Attributes{})
	chain.Rollback(t.Context(), &Attributes{})
	if want := []string{"a finish", "b finish", "b undo", "a undo"}; !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
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
