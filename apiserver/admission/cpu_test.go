package admission

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	upstream "k8s.io/apiserver/pkg/admission"
)

// evaluation is an upstream plugin with very many expressions. Like policies, it does not look at the context between
// two of them.
type evaluation struct {
	*upstream.Handler
	work int
}

func (e *evaluation) run(a upstream.Attributes) error {
	for limit := time.Now().Add(time.Minute); time.Now().Before(limit); e.work++ {
		_ = a.GetKind()
	}
	return nil
}

func (e *evaluation) Admit(_ context.Context, a upstream.Attributes, _ upstream.ObjectInterfaces) error {
	return e.run(a)
}

func (e *evaluation) Validate(_ context.Context, a upstream.Attributes, _ upstream.ObjectInterfaces) error {
	return e.run(a)
}

// TestWithinCPU: a plugin whose expressions take too much CPU time ends, and the write is denied.
func TestWithinCPU(t *testing.T) {
	holder, definition := events()
	chain := &Chain{Plugins: []Plugin{Upstream("endless", &evaluation{Handler: upstream.NewHandler(upstream.Create)},
		holder).
		WithinCPU(100 * time.Millisecond)}}
	attributes := &Attributes{Operation: Create, Definition: definition, Name: "x"}
	for name, err := range map[string]error{
		"Admit": chain.Admit(t.Context(), attributes), "Validate": chain.Validate(t.Context(), attributes),
	} {
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "more than 100ms of CPU time") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}
