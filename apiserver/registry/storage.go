package registry

import (
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// Storage is one etcd and the watch caches of the resources in it. Revisions of different Storages cannot be compared.
type Storage struct {
	Store  *storage.Store
	Caches *watchcache.Caches
	Quota  *storage.SoftQuota // nil: none
}

// Overrides are the Storages of the built-in resources that are not in the default one, by resource. The resource "*"
// means all others of its group.
type Overrides map[schema.GroupResource]*Storage

// Of returns the Storage of a resource, nil for the default Storage. The group of an override is the group in which the
// resource is stored: as in kube-apiserver, "/events" also applies to the events of events.k8s.io. An override of the
// resource takes precedence over an override of its group.
func (o Overrides) Of(d *resource.Definition) *Storage {
	if len(o) == 0 || d.Source != resource.BuiltIn || ownEtcd(d.Group) {
		return nil
	}
	if found := o[schema.GroupResource{Group: d.StorageVersion.Group, Resource: d.Plural}]; found != nil {
		return found
	}
	return o[schema.GroupResource{Group: d.StorageVersion.Group, Resource: "*"}]
}

// Uncached are the resources whose requests are served by storage instead of a watch cache. The server's own informers
// use the watch cache for these resources too: they hold no copies of objects, unlike the informers of kube-apiserver.
type Uncached struct {
	All       bool
	Resources map[schema.GroupResource]bool // built-in ones
}

func (u Uncached) has(d *resource.Definition) bool {
	return u.All || len(u.Resources) > 0 && d.Source == resource.BuiltIn &&
		u.Resources[schema.GroupResource{Group: d.StorageVersion.Group, Resource: d.Plural}]
}

// bypassesCache reports whether a request is served by storage because its resource is not cached. Requests of the
// server itself always use the cache.
func (r *Registry) bypassesCache(t resource.Target) bool {
	return !t.Internal && r.uncached.has(t.Definition)
}

// ownEtcd reports whether apiextensions-apiserver or kube-aggregator serves a group, which kube-apiserver chains with
// its own server. --etcd-servers-overrides does not apply to the groups of these two servers.
func ownEtcd(group string) bool {
	return group == "apiextensions.k8s.io" || group == "apiregistration.k8s.io"
}

// storageOf returns the Storage of a resource.
func (r *Registry) storageOf(m resource.Match) *Storage {
	if found := r.overrides.Of(m.Definition); found != nil {
		return found
	}
	return &r.main
}
