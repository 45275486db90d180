package resource

import (
	"context"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// Target is the subject of a request: a resource in a version, and optionally a subresource, a namespace and a name.
type Target struct {
	Match
	Endpoint  *Endpoint
	Namespace string
	Name      string // empty for collections
	// Internal marks requests of the server itself, which wait for a watch cache that is being initialized.
	Internal bool
}

// Target returns the target of a request of the server itself: a key in the preferred version of its resource.
func (c *Catalog) Target(key Key) (Target, error) {
	match, ok := c.Find(key.GroupResource)
	if key.Stored {
		if stored, custom := c.Stored(key.GroupResource); custom {
			match, ok = stored, true
		}
	}
	if !ok {
		return Target{}, apierrors.NewNotFound(key.GroupResource, key.Name)
	}
	endpoint, ok := match.Version.Endpoints[key.Subresource]
	if !ok {
		return Target{}, apierrors.NewNotFound(key.GroupResource, key.Name)
	}
	return Target{Match: match, Endpoint: endpoint, Namespace: key.Namespace, Name: key.Name, Internal: true}, nil
}

// Collection is the path prefix of all objects in the target's namespace, or in all namespaces.
func (t Target) Collection() string {
	if t.Namespaced && t.Namespace != "" {
		return t.StoragePath + "/" + t.Namespace + "/"
	}
	return t.StoragePath + "/"
}

// Prefix is the path of the target's object, or the collection if the target has no name.
func (t Target) Prefix() string {
	if t.Name == "" {
		return t.Collection()
	}
	return t.Path()
}

// Path is the storage path of the target's object.
func (t Target) Path() string { return t.Collection() + t.Name }

// ObjectKey returns the key of an object of the resource, given its storage path: "namespace/name", or "name" for a
// resource without namespaces.
func (t Target) ObjectKey(path string) string { return path[len(t.StoragePath)+1:] }

// Named returns the target with another name.
func (t Target) Named(name string) Target {
	t.Name = name
	return t
}

// Main is the endpoint of the resource itself.
func (t Target) Main() *Endpoint { return t.Version.Endpoints[""] }

// WithNamespace adds the target's namespace to a context, where upstream's strategies read it.
func (t Target) WithNamespace(ctx context.Context) context.Context {
	return request.WithNamespace(ctx, t.Namespace)
}

// BodyCodec is the codec of request and response bodies.
func (t Target) BodyCodec() Codec {
	if t.Endpoint.Body != nil {
		return t.Endpoint.Body
	}
	return t.Version.Codec
}
