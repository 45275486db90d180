package resource

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
)

// Compute returns objects, in the internal version, of a kind that is not stored: the object with the given name or, if
// name is empty, all objects sorted by name. Errors are API status errors.
type Compute func(ctx context.Context, name string) ([]runtime.Object, error)
