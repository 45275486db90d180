package resource

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Key names an object in the preferred version of its resource. Without a Name it names a collection.
type Key struct {
	schema.GroupResource
	// Subresource is "" for the resource itself. Only Update and Apply take one.
	Subresource string
	// Stored selects the version that objects are stored in instead of the preferred one, so that no conversion webhook
	// is called for objects in it. It also finds custom resources without a served version.
	Stored bool
	// Namespace is "" for a resource without namespaces and, in List, for all namespaces.
	Namespace string
	Name      string
}

// ReadOptions are the options of Get and List.
type ReadOptions struct {
	// Cached permits whatever the watch cache holds, like a client's resourceVersion=0. By default the result is at
	// least as new as the call.
	Cached bool
}

// WriteOptions are the options of Create, Update and Apply. The field manager is that of WithManager.
type WriteOptions struct {
	// DryRun runs admission and validation without storing the object.
	DryRun bool
}

// Reader reads objects in the internal version. Errors are API status errors.
type Reader interface {
	// Get returns an object. The caller must not change it.
	Get(ctx context.Context, key Key, options ReadOptions) (runtime.Object, error)
	// List returns all objects in a namespace, or in all. The caller must not change them.
	List(ctx context.Context, key Key, options ReadOptions) ([]runtime.Object, error)
}

// Writer writes objects in the internal version as the server itself. Errors are API status errors.
type Writer interface {
	// Create stores a new object through the resource's create strategy.
	Create(ctx context.Context, key Key, object runtime.Object, options WriteOptions) (runtime.Object, error)
	// Update applies change to a copy of the current object and stores the copy through the update strategy. After a
	// conflict it calls change again with the new object. It returns an error of change unwrapped.
	Update(ctx context.Context, key Key, change func(runtime.Object) error, options WriteOptions) (runtime.Object, error)
	// Apply is a forced server-side apply of a configuration that is marshaled to JSON.
	Apply(ctx context.Context, key Key, configuration any, options WriteOptions) (runtime.Object, error)
	// Delete deletes an object as a client's request does.
	Delete(ctx context.Context, key Key, options *metav1.DeleteOptions) error
}

// Client is how the server's own code (actions, admission plugins, controllers) reads and writes objects, without
// HTTP and without authorization. Tests embed it to intercept one method.
type Client interface {
	Reader
	Writer
}

// PreconditionError is what a change passed to Writer.Update returns for an object other than the intended one.
// Update answers with the conflict that kube-apiserver's storage reports.
type PreconditionError struct {
	What           string // "UID"
	Wanted, Actual string
}

func (e *PreconditionError) Error() string {
	return fmt.Sprintf("Precondition failed: %s in precondition: %s, %s in object meta: %s", e.What, e.Wanted, e.What, e.Actual)
}
