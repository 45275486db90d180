package crd_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"quorate.dev/apiserver/request"
	"quorate.dev/test/upstream"
)

// soon is the time in which an object must be validated on a busy machine. Without a bound, the objects of these tests
// take minutes.
const soon = 20 * time.Second

// repeat returns a list with the same element so many times.
func repeat(element any, times int) []any {
	list := make([]any, times)
	for i := range list {
		list[i] = element
	}
	return list
}

// TestManyViolations validates objects that violate their schemas hundreds of thousands of times.
func TestManyViolations(t *testing.T) {
	upstream.NeedsTime(t)
	var names []string
	for i := range 10_000 {
		names = append(names, fmt.Sprintf("%q", fmt.Sprint("r", i)))
	}
	alternatives := strings.TrimSuffix(strings.Repeat(`{"minimum":9},`, 200), ",")
	object := func(of string) string { return `{"type":"object","properties":{"a":` + of + `}}` }
	for name, test := range map[string]struct {
		schema string
		value  any
	}{
		"types":    {object(`{"type":"array","items":{"type":"string"}}`), repeat(int64(1), 300_000)},
		"patterns": {object(`{"type":"array","items":{"type":"string","pattern":"^a$"}}`), repeat("b", 300_000)},
		"properties": {
			object(`{"type":"array","items":{"type":"object","properties":{"x":{"type":"string"}}}}`),
			repeat(map[string]any{"x": int64(1)}, 200_000),
		},
		"required": {
			object(`{"type":"array","items":{"type":"object","required":[` + strings.Join(names, ",") + `]}}`),
			repeat(map[string]any{}, 1000),
		},
		"anyOf": {
			object(`{"type":"array","items":{"type":"integer","anyOf":[` + alternatives + `]}}`), repeat(int64(1), 100_000),
		},
		"violations at the end": {object(`{"type":"array","items":{"type":"string"}}`),
			append(repeat("a", 100_000), repeat(int64(1), 100_000)...)},
	} {
		t.Run(name, func(t *testing.T) {
			endpoint := withSchema(t, test.schema).Endpoints[""]
			invalid, valid := widget(map[string]any{"a": test.value}), widget(map[string]any{"a": []any{}})
			began := time.Now()
			if errs := endpoint.Create.Validate(t.Context(), invalid); len(errs) < request.MaxErrors {
				t.Errorf("create: %d errors: %.200v", len(errs), errs)
			}
			if errs := endpoint.Update.ValidateUpdate(t.Context(), invalid, valid); len(errs) < request.MaxErrors {
				t.Errorf("update: %d errors: %.200v", len(errs), errs)
			}
			if took := time.Since(began); took > soon {
				t.Errorf("took %v", took)
			}
		})
	}
}

// TestViolationsOfAlternatives validates an object that violates an alternative of anyOf thousands of times, and
// satisfies another.
func TestViolationsOfAlternatives(t *testing.T) {
	const schema = `{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"},` +
		`"anyOf":[{"items":{"pattern":"^b$"}},{"items":{"pattern":"^a$"}}]},"z":{"type":"string"}}}`
	create := withSchema(t, schema).Endpoints[""].Create
	if errs := create.Validate(t.Context(), widget(map[string]any{"a": repeat("a", 3000), "z": "z"})); len(errs) > 0 {
		t.Errorf("a valid object: %.200v", errs)
	}
	if errs := create.Validate(t.Context(), widget(map[string]any{"a": repeat("c", 10), "z": "z"})); len(errs) == 0 {
		t.Error("an invalid object is valid")
	}
}

// TestManyRatchetedViolations updates an object that has had thousands of violations since its definition changed.
func TestManyRatchetedViolations(t *testing.T) {
	update := withSchema(t,
		`{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}},"b":{"type":"integer"}}}`).
		Endpoints[""].Update
	old := widget(map[string]any{"a": repeat(int64(1), 2000), "b": int64(1)})
	changed := widget(map[string]any{"a": repeat(int64(1), 2000), "b": int64(2)})
	if errs := update.ValidateUpdate(t.Context(), changed, old); len(errs) > 0 {
		t.Errorf("violations that the object had before: %.200v", errs)
	}
}

// TestValidationStopsWithTheRequest validates an object for a request that has ended.
func TestValidationStopsWithTheRequest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	object := widget(map[string]any{"a": "a"})
	endpoint := withSchema(t, `{"type":"object","properties":{"a":{"type":"string"}}}`).Endpoints[""]
	if errs := endpoint.Create.Validate(ctx, object); len(errs) == 0 {
		t.Error("an object that was not validated can be created")
	}
	if errs := endpoint.Update.ValidateUpdate(ctx, object, object); len(errs) == 0 {
		t.Error("an object that was not validated can be updated")
	}
}
