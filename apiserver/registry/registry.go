package registry

import (
	"context"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
	"quorate.dev/writelimit"
)

// Registry serves the verbs of every resource in the catalog. It is safe for concurrent use.
//
// Its fields are all the state that requests share. It has no lock: every field is set before the first request and
// is itself safe for concurrent use.
type Registry struct {
	// main is the Storage of all custom resources and of the built-in resources without an override.
	main      Storage
	overrides Overrides
	uncached  Uncached
	catalog   *resource.CatalogHolder
	admission *admission.Chain
	clock     clock.Clock
	logger    logr.Logger
	metrics   *Metrics
	// noGarbageCollector is set if no garbage collector would remove the finalizers "orphan" and "foregroundDeletion".
	noGarbageCollector bool
	// listBytes bounds the stored bytes that all concurrent lists from storage hold, and the share of each user. A request
	// must not acquire it twice: two such requests could wait for each other.
	listBytes *request.ByteLimit
	// deletesUnreadable is the feature gate AllowUnsafeMalformedObjectDeletion.
	deletesUnreadable bool
	// ownWrites limits the writes of the server's controllers; nil: no limit.
	ownWrites *writelimit.Limiter
}

// Options are the dependencies of a Registry.
type Options struct {
	// Store, Caches and Quota serve all resources without an override.
	Store     *storage.Store
	Caches    *watchcache.Caches
	Quota     *storage.SoftQuota // nil: none
	Overrides Overrides          // nil: none
	Uncached  Uncached
	Catalog   *resource.CatalogHolder
	Admission *admission.Chain
	// NoGarbageCollector is set if the cluster has no garbage collector. Deletions then never add its finalizers
	// (EnableGarbageCollection of kube-apiserver's Store).
	NoGarbageCollector bool
	// DeleteUnreadable is the feature gate AllowUnsafeMalformedObjectDeletion. The encryption of the store must then be
	// wrapped by encryption.Malformed, whose errors clients are shown.
	DeleteUnreadable bool
	Clock            clock.Clock
	Logger           logr.Logger
	Metrics          *Metrics // nil: not measured
	// OwnWrites limits the writes of the server's controllers; nil: no limit.
	OwnWrites *writelimit.Limiter
}

// New returns a registry.
func New(options Options) *Registry {
	return &Registry{
		main:      Storage{Store: options.Store, Caches: options.Caches, Quota: options.Quota},
		overrides: options.Overrides,
		uncached:  options.Uncached,
		catalog:   options.Catalog,
		admission: options.Admission,
		clock:     options.Clock,
		logger:    options.Logger,
		metrics:   options.Metrics,
		listBytes: request.NewByteLimit(maxListBytes),

		noGarbageCollector: options.NoGarbageCollector,
		deletesUnreadable:  options.DeleteUnreadable,
		ownWrites:          options.OwnWrites,
	}
}

// Target returns the target of a request of the server itself, in the current catalog.
func (r *Registry) Target(key resource.Key) (resource.Target, error) {
	return r.catalog.Current().Target(key)
}

// Cache returns the watch cache of the target's collection, which all versions share. A new cache is built from the
// definition in the current catalog, which may be newer than the one the request was routed to. If the resource is no
// longer served, the cache is a dropped one.
func (r *Registry) Cache(m resource.Match) *watchcache.Cache {
	return r.storageOf(m).Caches.For(m.StoragePath, func() (watchcache.Extract, bool) {
		current, served := r.currentMatch(m)
		return extract(current), served
	})
}

// Size returns the number of objects of a collection and their mean size in bytes, 0 while it has not been read. It
// does not wait: flow control calls it for each list to estimate the cost.
func (r *Registry) Size(m resource.Match) (objects, mean int64) {
	cache := r.Cache(m)
	return cache.Objects(), cache.MeanSize()
}

// currentMatch returns the definition that the current catalog has in place of m, and reports whether the catalog has a
// served one; if not, it returns m. Built-in definitions never change. The version does not matter: a cache holds
// stored bytes, which all versions share.
func (r *Registry) currentMatch(m resource.Match) (resource.Match, bool) {
	if m.Source == resource.BuiltIn {
		return m, true
	}
	if d := r.catalog.Current().Successor(m.Definition); d != nil && len(d.Versions) > 0 {
		return resource.Match{Definition: d, Version: d.Versions[0]}, true
	}
	return m, false
}

// extract returns how a watch cache reads the labels and selectable fields of the stored bytes of a resource.
func extract(m resource.Match) watchcache.Extract {
	return watchcache.Extract{
		Resource:  m.GroupResource(),
		Labels:    codec.Labels,
		Index:     m.Index,
		Fields:    func(stored []byte) (fields.Set, error) { return storedFields(m, stored) },
		Remote:    m.ConvertsRemotely,
		Converted: convertedAttributes,
	}
}

// storedFields returns the selectable fields of a stored object. It decodes the object in a served version that needs
// no webhook for these bytes. If there is none, m's own version calls the webhook; callers avoid that case
// (watchcache.Entry.Fields).
func storedFields(m resource.Match, stored []byte) (fields.Set, error) {
	for _, v := range m.Versions {
		if !v.Codec.Remote(stored) {
			m.Version = v
			break
		}
	}
	internal, err := m.Version.Codec.Load(context.Background(), stored)
	if err != nil {
		return nil, err
	}
	return m.Fields(internal)
}

// convertedAttributes returns the labels and selectable fields of an object that a webhook has converted.
func convertedAttributes(m resource.Match, object runtime.Object) (labels.Set, fields.Set, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, nil, err
	}
	set, err := m.Fields(object)
	return accessor.GetLabels(), set, err
}

// Release drops the cache of a custom resource whose definition changed or went away; overrides have no custom
// resources. The new catalog must be published first, or a concurrent request would build a cache from the old
// definition again.
func (r *Registry) Release(d *resource.Definition) { r.main.Caches.Drop(d.StoragePath) }
