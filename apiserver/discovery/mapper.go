package discovery

import (
	"sync/atomic"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/restmapper"

	"quorate.dev/apiserver/resource"
)

// Mapper implements meta.RESTMapper on the current catalog, with the results of a client with this server's discovery.
type Mapper struct {
	catalogs *resource.CatalogHolder
	current  atomic.Pointer[mapping]
}

var _ meta.RESTMapper = &Mapper{}

// NewMapper returns a mapper.
func NewMapper(catalogs *resource.CatalogHolder) *Mapper { return &Mapper{catalogs: catalogs} }

// mapping is the mapper of one catalog.
type mapping struct {
	catalog *resource.Catalog
	meta.RESTMapper
}

// mapping returns the mapper of the current catalog, built by the first call after a change.
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

// KindFor implements meta.RESTMapper.
func (m *Mapper) KindFor(resource schema.GroupVersionResource) (schema.GroupVersionKind, error) {
	return m.mapping().KindFor(resource)
}

// KindsFor implements meta.RESTMapper.
func (m *Mapper) KindsFor(resource schema.GroupVersionResource) ([]schema.GroupVersionKind, error) {
	return m.mapping().KindsFor(resource)
}

// ResourceFor implements meta.RESTMapper.
func (m *Mapper) ResourceFor(input schema.GroupVersionResource) (schema.GroupVersionResource, error) {
	return m.mapping().ResourceFor(input)
}

// ResourcesFor implements meta.RESTMapper.
func (m *Mapper) ResourcesFor(input schema.GroupVersionResource) ([]schema.GroupVersionResource, error) {
	return m.mapping().ResourcesFor(input)
}

// RESTMapping implements meta.RESTMapper.
func (m *Mapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	return m.mapping().RESTMapping(kind, versions...)
}

// RESTMappings implements meta.RESTMapper.
func (m *Mapper) RESTMappings(kind schema.GroupKind, versions ...string) ([]*meta.RESTMapping, error) {
	return m.mapping().RESTMappings(kind, versions...)
}

// ResourceSingularizer implements meta.RESTMapper.
func (m *Mapper) ResourceSingularizer(resource string) (string, error) {
	return m.mapping().ResourceSingularizer(resource)
}
