package registry

import (
	"context"

	"k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// Target is the subject of a request: a resource in a version, and optionally a subresource, a namespace and a name.
type Target struct {
	resource.Match
	Endpoint  *resource.Endpoint
	Namespace string
	Name      string // empty for collections
	// Internal marks requests of the server itself, which wait for a watch cache that is being initialized.
	Internal bool
}

// collection is the path prefix of all objects in the target's namespace, or in all namespaces.
func (t Target) collection() string {
	if t.Namespaced && t.Namespace != "" {
		return t.StoragePath + "/" + t.Namespace + "/"
	}
	return t.StoragePath + "/"
}

// prefix is the path of the target's object, or the collection if the target has no name.
func (t Target) prefix() string {
	if t.Name == "" {
		return t.collection()
	}
	return t.path()
}

// path is the storage path of the target's object.
func (t Target) path() string { return t.collection() + t.Name }

// named returns the target with another name.
func (t Target) named(name string) Target {
	t.Name = name
	return t
}

// main is the endpoint of the resource itself.
func (t Target) main() *resource.Endpoint { return t.Version.Endpoints[""] }

// context adds the namespace, which upstream's strategies read from the context.
func (t Target) context(ctx context.Context) context.Context {
	return request.WithNamespace(ctx, t.Namespace)
}

// key is "namespace/name", or "name" for a resource without namespaces.
func (t Target) key(entry *watchcache.Entry) string { return entry.Path()[len(t.StoragePath)+1:] }

// bodyCodec is the codec of request and response bodies.
func bodyCodec(t Target) resource.Codec {
	if t.Endpoint.Body != nil {
		return t.Endpoint.Body
	}
	return t.Version.Codec
}
