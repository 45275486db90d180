package owned

import (
	"context"
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Labeled reads and writes objects that cannot have an owner reference to a cluster: objects inside the cluster, and
// cluster-scoped objects of its host. Their labels show which cluster they were created for.
type Labeled struct {
	API      client.Client
	Selector labels.Set // matches the labels of all objects that were created for the cluster
}

// Change is the effect of a write on an object.
type Change int

// Changes of an object.
const (
	Unchanged Change = iota
	Created
	Updated
)

// EnsureSlice creates or updates an EndpointSlice. It recreates the slice if the address type changes, because that
// field is immutable. If the operator stops between the deletion and the creation, the next reconciliation creates the
// slice; until then, the Service has no endpoints.
func (l Labeled) EnsureSlice(ctx context.Context, wanted *discoveryv1.EndpointSlice) error {
	current := &discoveryv1.EndpointSlice{}
	err := l.API.Get(ctx, client.ObjectKeyFromObject(wanted), current)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read %s: %w", wanted.Name, err)
	}
	if err == nil && l.owns(current) && current.AddressType != wanted.AddressType {
		if err := l.API.Delete(ctx, current); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete endpointslice %s: %w", wanted.Name, err)
		}
	}
	current = &discoveryv1.EndpointSlice{}
	_, err = l.Ensure(ctx, wanted, current, func() {
		current.Endpoints, current.Ports = wanted.Endpoints, wanted.Ports
	})
	return err
}

// owns reports whether an object was created for the cluster.
func (l Labeled) owns(object client.Object) bool {
	return l.Selector.AsSelector().Matches(labels.Set(object.GetLabels()))
}

// Ensure creates an object, or updates it: it reads the existing object into current, calls set, which sets fields of
// current to the wanted values, and writes current if that has changed it. Fields that set does not touch keep their
// values, such as defaults and fields of other clients. An existing object that was not created for the cluster is an
// ErrForeign.
func (l Labeled) Ensure(ctx context.Context, wanted, current client.Object, set func()) (Change, error) {
	err := l.API.Get(ctx, client.ObjectKeyFromObject(wanted), current)
	if apierrors.IsNotFound(err) {
		if err := l.API.Create(ctx, wanted); err != nil {
			return Unchanged, fmt.Errorf("create %s: %w", wanted.GetName(), err)
		}
		return Created, nil
	}
	if err != nil {
		return Unchanged, fmt.Errorf("read %s: %w", wanted.GetName(), err)
	}
	if !l.owns(current) {
		return Unchanged, fmt.Errorf("an object named %s exists and %w; delete it, or rename the entry or its serviceRef",
			wanted.GetName(), ErrForeign)
	}
	before, ok := current.DeepCopyObject().(client.Object)
	if !ok {
		return Unchanged, fmt.Errorf("%T is no object", current)
	}
	set()
	SetLabels(current, wanted)
	if equality.Semantic.DeepEqual(before, current) {
		return Unchanged, nil
	}
	if err := l.API.Update(ctx, current); err != nil {
		return Unchanged, fmt.Errorf("update %s: %w", wanted.GetName(), err)
	}
	return Updated, nil
}

// Prune deletes the objects of one kind that were created for the cluster and are not in keep. Prune finds the objects
// by their labels and not by a list of names, so that objects of an interrupted reconciliation, or of an entry that was
// removed from the spec while the operator did not run, are deleted too. It returns the objects that it has deleted,
// also if it returns an error.
func (l Labeled) Prune(
	ctx context.Context, keep map[client.ObjectKey]bool, list client.ObjectList,
) (deleted []client.Object, err error) {
	if err := l.API.List(ctx, list, client.MatchingLabels(l.Selector)); err != nil {
		return nil, err
	}
	err = meta.EachListItem(list, func(item runtime.Object) error {
		object, ok := item.(client.Object)
		if !ok || keep[client.ObjectKeyFromObject(object)] {
			return nil
		}
		if err := l.API.Delete(ctx, object); client.IgnoreNotFound(err) != nil {
			return err
		}
		deleted = append(deleted, object)
		return nil
	})
	return deleted, err
}
