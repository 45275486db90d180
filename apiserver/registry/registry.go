// Package registry is what each verb means: one straight line from a request's target and options to storage and
// back, the same for built-in kinds, custom resources and their subresources. Reads come from the watch cache as
// encoded entries; writes decode once, are checked, encode once and commit by compare-and-swap.
package registry

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// Registry serves the verbs of every resource in the catalog.
type Registry struct {
	store      *storage.Store
	caches     *watchcache.Caches
	catalog    *resource.CatalogHolder
	admission  *admission.Chain
	quota      *storage.SoftQuota
	authorizer authorizer.Authorizer
	clock      clock.Clock
	logger     logr.Logger
	stored     *byteLimit // of lists that are read from storage
}

// Options are what a Registry works with.
type Options struct {
	Store     *storage.Store
	Caches    *watchcache.Caches
	Catalog   *resource.CatalogHolder
	Admission *admission.Chain
	Quota     *storage.SoftQuota // nil: none
	Clock     clock.Clock
	Logger    logr.Logger
}

// New returns a registry.
func New(options Options) *Registry {
	return &Registry{
		store:     options.Store,
		caches:    options.Caches,
		catalog:   options.Catalog,
		admission: options.Admission,
		quota:     options.Quota,
		clock:     options.Clock,
		logger:    options.Logger,
		stored:    newStoredLimit(),
	}
}

// AuthorizeWith sets who is asked before an update creates an object. It must be called before requests are served.
func (r *Registry) AuthorizeWith(a authorizer.Authorizer) { r.authorizer = a }

// Target is what a request is about: a resource in a version, perhaps a subresource, a namespace, a name.
type Target struct {
	resource.Match
	Endpoint  *resource.Endpoint
	Namespace string
	Name      string // empty for collections
}

// collection is the prefix of the keys of all objects of the target's namespace, or of all namespaces.
func (t Target) collection() string {
	if t.Namespaced && t.Namespace != "" {
		return t.StoragePath + "/" + t.Namespace + "/"
	}
	return t.StoragePath + "/"
}

// path is the key of the target's object.
func (t Target) path() string { return t.collection() + t.Name }

// named returns the target of one object of the same collection.
func (t Target) named(name string) Target {
	t.Name = name
	return t
}

// main is the endpoint of the resource itself.
func (t Target) main() *resource.Endpoint { return t.Version.Endpoints[""] }

// context carries the namespace to upstream's strategies, which read it there.
func (t Target) context(ctx context.Context) context.Context {
	return request.WithNamespace(ctx, t.Namespace)
}

// cache returns the cache of the target's collection, which all versions share. It is made after the definition in
// force, which may be another than the one that a request has found; where there is none any more, the cache is a
// dropped one.
func (r *Registry) cache(m resource.Match) *watchcache.Cache {
	return r.caches.For(m.StoragePath, func() (watchcache.Extract, bool) {
		inForce, served := r.inForce(m)
		return extract(inForce), served
	})
}

// inForce returns the definition that is now in the place of one that may have changed or gone; in the latter case, the
// one given.
func (r *Registry) inForce(m resource.Match) (resource.Match, bool) {
	if m.Source == resource.BuiltIn {
		return m, true
	}
	for _, d := range r.catalog.Current().Definitions() {
		if d.StoragePath == m.StoragePath && d.Source == m.Source && len(d.Versions) > 0 {
			return resource.Match{Definition: d, Version: d.Versions[0]}, true
		}
	}
	return m, false
}

func extract(m resource.Match) watchcache.Extract {
	return watchcache.Extract{
		Resource: m.GroupResource(),
		Labels:   codec.Labels,
		Fields:   func(stored []byte) (fields.Set, error) { return storedFields(m, stored) },
	}
}

func storedFields(m resource.Match, stored []byte) (fields.Set, error) {
	internal, err := m.Version.Codec.Load(stored)
	if err != nil {
		return nil, err
	}
	return m.Fields(internal)
}

// Cache returns the cache of a resource, for those of the server's own parts that read it as it is.
func (r *Registry) Cache(m resource.Match) *watchcache.Cache { return r.cache(m) }

// Release drops what is cached for a resource that is no longer served as it was. The catalog in force must tell already
// how it is served now.
func (r *Registry) Release(d *resource.Definition) { r.caches.Drop(d.StoragePath) }

// Result is the outcome of a write.
type Result struct {
	// Object is the internal version object that was written, or what an action answered. The caller owns it.
	Object runtime.Object
	// Stored is what storage holds now, or held last; nil where an action answered. It is what the client is
	// shown, so that it sees the same as whoever reads the object afterwards.
	Stored   []byte
	Revision int64
	// Created is set when an update made the object.
	Created bool
	// Rehearsed is set by a dry run: nothing of the result is in storage.
	Rehearsed bool
	// Deleted is set when the object is gone from storage; false: it waits for finalizers or its grace period.
	Deleted bool
	// Undecorated is set where the client is shown the object as it is stored: a deletion that waits for others.
	Undecorated bool
	// Blank is set where the client is shown an object with nothing in it instead of what was deleted.
	Blank bool
}

// WriteOptions are common to all writes.
type WriteOptions struct {
	DryRun bool
	// Manager is who is recorded in managedFields.
	Manager string
	// Options are the client's, as admission is shown them; nil where there is no client.
	Options runtime.Object
	// Internal is set for what the server itself writes.
	Internal bool
	// Collection is set for an object that is deleted as part of its collection.
	Collection bool

	// applied is set for a configuration that is applied, the next of which needs the managed fields of this one.
	applied bool
}
