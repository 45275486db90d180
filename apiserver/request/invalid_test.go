package request

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestBound shows the first errors only: of many errors, and of errors with large values.
func TestBound(t *testing.T) {
	list := func(number, size int) (errs field.ErrorList) {
		for range number {
			errs = append(errs, field.Invalid(field.NewPath("spec"), strings.Repeat("x", size), "is wrong"))
		}
		return errs
	}
	for _, test := range []struct {
		name                string
		errs                field.ErrorList
		wantShown, wantLeft int
	}{
		{"none", nil, 0, 0},
		{"as many as are shown", list(MaxErrors, 10), MaxErrors, 0},
		{"many", list(MaxErrors+1, 10), MaxErrors, 1},
		{"one with a large value", list(1, 3<<20), 1, 0},
		{"many with large values", list(50, 300_000), 4, 46},
	} {
		t.Run(test.name, func(t *testing.T) {
			shown, left := Bound(test.errs)
			if len(shown) != test.wantShown || left != test.wantLeft {
				t.Errorf("%d are shown and %d are not, want %d and %d", len(shown), left, test.wantShown, test.wantLeft)
			}
		})
	}
	const message = "(4 shown of 50 errors)"
	if err := Invalid(
		schema.GroupKind{Kind: "Kind"}, "name", list(50, 300_000),
	); !strings.HasSuffix(err.Error(), message) {
		t.Errorf("the message ends with %q, want %q", err.Error()[len(err.Error())-50:], message)
	}
}
