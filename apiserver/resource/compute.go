package resource

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
)

// Compute makes the internal version objects of a kind that is stored nowhere: all of them, sorted by name, or, for a name, that
// one. Errors are API status errors.
type Compute func(ctx context.Context, name string) ([]runtime.Object, error)
