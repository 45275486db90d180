package limited

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

func TestRetries(t *testing.T) {
	r := NewRetries(time.Second)
	a, b := types.NamespacedName{Name: "a"}, types.NamespacedName{Name: "b"}
	for i, want := range []time.Duration{1, 2, 4, 8, 15, 15} {
		if got := r.Conflict(a); got != want*time.Second {
			t.Errorf("delay %d: %v, want %v", i, got, want*time.Second)
		}
	}
	if got := r.Conflict(b); got != time.Second {
		t.Errorf("first delay of another object: %v", got)
	}
	r.Forget(a)
	if got := r.Conflict(a); got != time.Second {
		t.Errorf("first delay after a success: %v", got)
	}
}
