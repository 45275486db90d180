package resource

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
)

// Compute returns the internal version objects of a kind that is not stored: the named one or, without a name, all of
// them sorted by name. Errors are API status errors.
type Compute func(ctx context.Context, name string) ([]runtime.Object, error)
