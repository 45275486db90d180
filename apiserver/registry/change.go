package registry

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
)

// Change computes the object to store from the stored one. Apply may be called more than once and must not change
// current, which is nil if there is no object.
type Change interface {
	Apply(ctx context.Context, t Target, current runtime.Object) (runtime.Object, error)
	// CreatesMissing reports whether the change can create the object, whatever the strategy says.
	CreatesMissing() bool
	// UID is the UID that the object must have; empty for any.
	UID() types.UID
}

// Replacement is the Change of a PUT: the client's whole object.
type Replacement struct {
	Object  runtime.Object
	Manager string
}

// Apply implements Change.
func (c Replacement) Apply(ctx context.Context, t Target, current runtime.Object) (runtime.Object, error) {
	object := c.Object.DeepCopyObject()
	removeDuplicateOwners(ctx, object, duplicateOwners)
	return object, track(t, current, object, c.Manager)
}

// CreatesMissing implements Change.
func (Replacement) CreatesMissing() bool { return false }

// UID implements Change.
func (c Replacement) UID() types.UID {
	if accessor, err := meta.Accessor(c.Object); err == nil {
		return accessor.GetUID()
	}
	return ""
}
