package resource

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Key identifies an object in the preferred version of its resource. Without a Name it identifies a collection.
type Key struct {
	schema.GroupResource
	// Subresource is "" for the resource itself. Only Update and Apply support subresources.
	Subresource string
	// Stored selects the version in which objects are stored instead of the preferred version, so that no conversion
	// webhook is called for objects stored in it. It also finds custom resources without a served version.
	Stored bool
	// Namespace is "" for cluster-scoped resources and, in List, for all namespaces.
	Namespace string
	Name      string
}

// ReadOptions are the options of Get and List.
type ReadOptions struct {
	// Cached permits a result from the watch cache without waiting, like a client's resourceVersion=0. By default the
	// result is at least as new as the call.
	Cached bool
}

// WriteOptions are the options of Create, Update and Apply. The field manager is the one set with WithManager.
type WriteOptions struct {
	// DryRun runs admission and validation without storing the object.
	DryRun bool
}

// Reader reads objects in the internal version. Errors are API status errors.
type Reader interface {
	// Get returns an object. The caller must not change it.
	Get(ctx context.Context, key Key, options ReadOptions) (runtime.Object, error)
	// List returns the objects in the key's namespace, or in all namespaces. The caller must not change them.
	List(ctx context.Context, key Key, options ReadOptions) ([]runtime.Object, error)
}

// Writer writes objects in the internal version as the server's own user. Errors are API status errors.
type Writer interface {
	// Create stores a new object, using the resource's create strategy.
	Create(ctx context.Context, key Key, object runtime.Object, options WriteOptions) (runtime.Object, error)
	// Update applies change to a copy of the current object and stores the copy, using the update strategy. After a
	// conflict it calls change again with the new object. It returns an error of change unwrapped.
	Update(ctx context.Context, key Key, change func(runtime.Object) error, options WriteOptions) (runtime.Object, error)
	// Apply does a forced server-side apply of a configuration, which must marshal to JSON.
	Apply(ctx context.Context, key Key, configuration any, options WriteOptions) (runtime.Object, error)
	// Delete deletes an object as a client's DELETE request would.
	Delete(ctx context.Context, key Key, options *metav1.DeleteOptions) error
}

// Client gives the server's own code (actions, admission plugins, controllers) access to objects, without HTTP and
// without authorization. Tests embed a Client to intercept one method.
type Client interface {
	Reader
	Writer
}

// PreconditionError is returned by a change of Writer.Update if the object is not the intended one. Update converts it
// to the conflict that kube-apiserver's storage reports.
type PreconditionError struct {
	// What names the precondition, for example "UID".
	What           string
	Wanted, Actual string
}

func (e *PreconditionError) Error() string {
	return fmt.Sprintf("Precondition failed: %s in precondition: %s, %s in object meta: %s", e.What, e.Wanted,
		e.What, e.Actual)
}
