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

func (s station) note(what string) { *s.log = append(*s.log, s.name+" "+what) }

func (s station) Admit(context.Context, *Attributes) error {
	s.note("admit")
	return s.refuse
}

func (s station) Validate(context.Context, *Attributes) error {
	s.note("validate")
	return s.refuse
}

func (s station) Undo(context.Context, *Attributes)   { s.note("undo") }
func (s station) Finish(context.Context, *Attributes) { s.note("finish") }

func TestRefusalUndoesWhatWasDone(t *testing.T) {
	var log []string
	refusal := errors.New("no")
	chain := Chain{Mutators: []Mutator{station{"a", &log, nil}, station{"b", &log, nil}, station{"c", &log, refusal}, station{"d", &log, nil}}}
	if err := chain.Admit(t.Context(), &Attributes{}); !errors.Is(err, refusal) {
		t.Errorf("got %v", err)
	}
	if want := []string{"a admit", "b admit", "c admit", "b undo", "a undo"}; !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
}

func TestFirstRefusalEndsValidation(t *testing.T) {
	var log []string
	refusal := errors.New("no")
	chain := Chain{Validators: []Validator{station{"a", &log, nil}, station{"b", &log, refusal}, station{"c", &log, nil}}}
	if err := chain.Validate(t.Context(), &Attributes{}); !errors.Is(err, refusal) {
		t.Errorf("got %v", err)
	}
	if want := []string{"a validate", "b validate"}; !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
}

func TestFinish(t *testing.T) {
	var log []string
	chain := Chain{Mutators: []Mutator{station{"a", &log, nil}, station{"b", &log, nil}}}
	chain.Finish(t.Context(), &Attributes{})
	chain.Undo(t.Context(), &Attributes{})
	if want := []string{"a finish", "b finish", "b undo", "a undo"}; !slices.Equal(log, want) {
		t.Errorf("got %q, want %q", log, want)
	}
}
