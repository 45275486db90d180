package bootstrap

import (
	"context"
	"errors"
	"maps"
	"slices"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/ensurer"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/system"
)

// configuration is the type of objects that upstream's ensurer manages.
type configuration interface {
	comparable
	metav1.Object
	runtime.Object
}

// configurations gives upstream's ensurer access to the objects of one kind. read lists the objects once. Get reads an
// object from etcd if it was not in the list.
type configurations[T configuration] struct {
	ctx       context.Context // context for List and Get, whose interface has none
	bootstrap *Bootstrap
	resource  schema.GroupResource
	known     map[string]T // by name
}

// read lists the existing objects.
func (c *configurations[T]) read() error {
	present, err := c.bootstrap.list(c.ctx, c.resource)
	if err != nil {
		return err
	}
	c.known = make(map[string]T, len(present))
	for _, internal := range present {
		object, err := configurationOf[T](internal)
		if err != nil {
			return err
		}
		c.known[object.GetName()] = object
	}
	return nil
}

// tasks returns the tasks that ensure the desired objects and delete obsolete ones.
func (c configurations[T]) tasks(mandatory, suggested []T, operations ensurer.ObjectOps[T]) []task {
	var tasks []task
	ensure := func(wanted []T, strategy ensurer.EnsureStrategy[T]) {
		for _, object := range wanted {
			tasks = append(tasks, func(ctx context.Context) error {
				return ensurer.EnsureConfiguration(ctx, operations, object, strategy)
			})
		}
	}
	ensure(mandatory, ensurer.NewMandatoryEnsureStrategy[T]())
	ensure(suggested, ensurer.NewSuggestedEnsureStrategy[T]())
	return append(tasks, func(ctx context.Context) error {
		return ensurer.RemoveUnwantedObjects(ctx, operations, slices.Concat(mandatory, suggested))
	})
}

// List returns the listed objects. The selector is always empty.
func (c configurations[T]) List(labels.Selector) ([]T, error) {
	return slices.Collect(maps.Values(c.known)), nil
}

// Get returns the listed object, or reads it from etcd.
func (c configurations[T]) Get(name string) (T, error) {
	if object, ok := c.known[name]; ok {
		return object, nil
	}
	internal, err := c.bootstrap.objects.Get(c.ctx,
		resource.Key{GroupResource: c.resource, Name: name}, resource.ReadOptions{})
	if err != nil {
		var none T
		return none, err
	}
	return configurationOf[T](internal)
}

// Create creates an object.
func (c configurations[T]) Create(ctx context.Context, object T, _ metav1.CreateOptions) (T, error) {
	created, err := c.bootstrap.create(ctx, c.resource, object)
	if err != nil {
		var none T
		return none, err
	}
	return configurationOf[T](created)
}

// Update replaces an object unless it has changed since the read.
func (c configurations[T]) Update(ctx context.Context, object T, _ metav1.UpdateOptions) (T, error) {
	var none T
	wanted, err := system.ToInternal(object)
	if err != nil {
		return none, err
	}
	key := resource.Key{GroupResource: c.resource, Name: object.GetName()}
	updated, err := c.bootstrap.objects.Update(ctx, key, func(current runtime.Object) error {
		if current.(metav1.Object).GetResourceVersion() != object.GetResourceVersion() {
			return apierrors.NewConflict(c.resource, object.GetName(), errors.New("changed since it was read"))
		}
		return overwrite(current, wanted)
	}, resource.WriteOptions{})
	if err != nil {
		return none, err
	}
	return configurationOf[T](updated)
}

// Delete deletes an object.
func (c configurations[T]) Delete(ctx context.Context, name string, options metav1.DeleteOptions) error {
	return c.bootstrap.objects.Delete(ctx, resource.Key{GroupResource: c.resource, Name: name}, &options)
}

// configurationOf returns a copy of an object in v1.
func configurationOf[T configuration](internal runtime.Object) (object T, err error) {
	external, err := legacyscheme.Scheme.ConvertToVersion(internal, flowcontrolv1.SchemeGroupVersion)
	if err != nil {
		return object, err
	}
	return external.(T), nil
}
