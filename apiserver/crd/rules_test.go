package crd_test

import (
	"context"
	"strings"
	"testing"

	"quorate.dev/test/upstream"
)

// numbers returns an object with a list of numbers.
func numbers(length int) map[string]any {
	list := make([]any, length)
	for i := range list {
		list[i] = int64(i)
	}
	return map[string]any{"l": list}
}

// TestRulesWithinCPU validates an object whose rules are within the limits of cost and take very long.
func TestRulesWithinCPU(t *testing.T) {
	upstream.NeedsTime(t)
	const schema = `{"type":"object","properties":{"l":{"type":"array","maxItems":1000000,"items":{"type":"integer",
		"x-kubernetes-validations":[{"rule":"self >= 0"},{"rule":"self < 100000000"},{"rule":"self != -1"},
			{"rule":"self >= -2 && self < 100000001"},{"rule":"self >= -3 && self < 100000002"},
			{"rule":"self >= -4 && self < 100000003"}]}}}}`
	create := withSchema(t, schema).Endpoints[""].Create
	if errs := create.Validate(t.Context(), widget(numbers(1000))); len(errs) > 0 {
		t.Errorf("a valid object: %v", errs)
	}
	got := messages(create.Validate(t.Context(), widget(numbers(1_000_000))))
	if want := "the validation rules were not checked because they take more than 2s of CPU time"; !strings.Contains(got,
		want) {
		t.Errorf("got %.200s, want %s", got, want)
	}
}

// TestRulesStopWithTheRequest validates an object for a request that has ended: its rules are not evaluated, and the
// object is not called invalid, because the write fails with the error of the context.
func TestRulesStopWithTheRequest(t *testing.T) {
	const schema = `{"type":"object","x-kubernetes-validations":[{"rule":"false"}]}`
	ctx, cancel := context.WithCancel(t.Context())
	create := withSchema(t, schema).Endpoints[""].Create
	if got := messages(create.Validate(ctx, widget(map[string]any{}))); got == "" {
		t.Error("the rule does not fail")
	}
	cancel()
	if got := messages(create.Validate(ctx, widget(map[string]any{}))); strings.Contains(got, "failed rule") ||
		strings.Contains(got, "CPU time") {
		t.Errorf("got %s", got)
	}
}

// TestLongQuantitiesInRules validates strings that rules parse as quantities.
func TestLongQuantitiesInRules(t *testing.T) {
	const field = `{"type":"object","properties":{"q":{"type":"array","items":{"type":"string"}}}`
	rule := `,"x-kubernetes-validations":[{"rule":"!isQuantity(self.q[0]) || quantity(self.q[0]).isGreaterThan(quantity('1'))"}]`
	for _, test := range []struct{ name, schema, quantity, want string }{
		{"usual", field + rule + "}", "1e10", ""},
		{"no quantity", field + rule + "}", "text", ""},
		{"too small", field + rule + "}", "1", "spec: Invalid value"},
		{
			"exponent", field + rule + "}", "1e100000000", "a rule parses quantities, which must not have more than 5000 digits",
		},
		{
			"digits", field + rule + "}", strings.Repeat("7", 6000),
			"a rule parses quantities, which must not have more than 5000 digits",
		},
		{"no rule", field + "}", "1e100000000", ""},
		{"rule elsewhere",
			`{"type":"object","properties":{"q":{"type":"array","items":{"type":"string"}},"other":{"type":"string",` +
				`"x-kubernetes-validations":[{"rule":"isQuantity (self)"}]}}}`, "7e12345", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			object := widget(map[string]any{"q": []any{test.quantity}})
			got := messages(withSchema(t, test.schema).Endpoints[""].Create.Validate(t.Context(), object))
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("got %.200s, want %s", got, test.want)
			}
		})
	}
}
