package discovery

import (
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/restmapper"

	"quorate.dev/apiserver/resource"
)

// Mapper finds resources by kind, and the other way round, as a client with this server's discovery would, in the
// catalog in force.
type Mapper struct {
	catalogs *resource.CatalogHolder
	current  atomic.Pointer[mapping]
}

var _ meta.RESTMapper = &Mapper{}

// NewMapper returns a mapper.
func NewMapper(catalogs *resource.CatalogHolder) *Mapper { return &Mapper{catalogs: catalogs} }

// mapping is that of one catalog.
type mapping struct {
	catalog *resource.Catalog
	meta.RESTMapper
}

// mapping returns that of the catalog in force, made by the first who asks after it changed.
func (m *Mapper) mapping() meta.RESTMapper {
	catalog := m.catalogs.Current()
	if known := m.current.Load(); known != nil && known.catalog == catalog {
		return known
	}
	made := &mapping{catalog: catalog, RESTMapper: restmapper.NewDiscoveryRESTMapper(groupResources(catalog))}
	m.current.Store(made)
	return made
}

func groupResources(catalog *resource.Catalog) []*restmapper.APIGroupResources {
	var all []*restmapper.APIGroupResources
	for _, g := range groups(catalog) {
		of := &restmapper.APIGroupResources{Group: apiGroup(g), VersionedResources: map[string][]metav1.APIResource{}}
		for _, gv := range g.versions {
			of.VersionedResources[gv.Version] = resourceList(gv).APIResources
		}
		all = append(all, of)
	}
	return all
}

// KindFor implements meta.RESTMapper, as do the following.
func (m *Mapper) KindFor(resource schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return m.mapping().KindFor(resource)
}

// KindsFor returns every kind that a resource may mean.
func (m *Mapper) KindsFor(resource schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	return m.mapping().KindsFor(resource)
}

// ResourceFor completes a resource.
func (m *Mapper) ResourceFor(input schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return m.mapping().ResourceFor(input)
}

// ResourcesFor returns every resource that may be meant.
func (m *Mapper) ResourcesFor(input schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	return m.mapping().ResourcesFor(input)
}

// RESTMapping finds the resource of a kind.
func (m *Mapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	return m.mapping().RESTMapping(kind, versions...)
}

// RESTMappings finds every resource of a kind.
func (m *Mapper) RESTMappings(kind schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	return m.mapping().RESTMappings(kind, versions...)
}

// ResourceSingularizer returns a resource's name for one object.
func (m *Mapper) ResourceSingularizer(resource string) (string, error) {
	return m.mapping().ResourceSingularizer(resource)
}
