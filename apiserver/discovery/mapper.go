package discovery

import (
	"slices"
	"sync/atomic"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/restmapper"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/resource"
)

// Mapper implements meta.RESTMapper for the current catalog and extension API servers. A client that uses this server's
// discovery has the same mappings.
type Mapper struct {
	catalogs *resource.CatalogHolder
	remote   remote.Source
	current  atomic.Pointer[mapping]
}

var _ meta.RESTMapper = &Mapper{}

// NewMapper returns a mapper.
func NewMapper(catalogs *resource.CatalogHolder, remote remote.Source) *Mapper {
	return &Mapper{catalogs: catalogs, remote: remote}
}

// mapping is the RESTMapper for one catalog and one set of extension API servers.
type mapping struct {
	catalog *resource.Catalog
	remote  *remote.Set
	meta.RESTMapper
}

// mapping returns the current RESTMapper. The first call after a change builds it.
func (m *Mapper) mapping() meta.RESTMapper {
	catalog, set := m.catalogs.Current(), m.remote.Current()
	if known := m.current.Load(); known != nil && known.catalog == catalog && known.remote == set {
		return known
	}
	all := addRemote(groupResources(catalog), set)
	made := &mapping{catalog: catalog, remote: set, RESTMapper: restmapper.NewDiscoveryRESTMapper(all)}
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

// addRemote adds the group versions of extension API servers, which replace this server's own. Like client-go's
// discovery, it omits stale group versions.
func addRemote(all []*restmapper.APIGroupResources, set *remote.Set) []*restmapper.APIGroupResources {
	if set == nil {
		return all
	}
	for _, r := range set.Remote {
		i := slices.IndexFunc(all, func(g *restmapper.APIGroupResources) bool { return g.Group.Name == r.Group })
		if i < 0 {
			i = len(all)
			all = append(all, &restmapper.APIGroupResources{
				Group: metav1.APIGroup{Name: r.Group}, VersionedResources: map[string][]metav1.APIResource{},
			})
		}
		g := all[i]
		delete(g.VersionedResources, r.Version)
		g.Group.Versions = slices.DeleteFunc(g.Group.Versions, func(v metav1.GroupVersionForDiscovery) bool {
			return v.Version == r.Version
		})
		if r.Discovery.Freshness == discoveryv2.DiscoveryFreshnessCurrent {
			version := metav1.GroupVersionForDiscovery{GroupVersion: r.GroupVersion.String(), Version: r.Version}
			g.Group.Versions = append(g.Group.Versions, version)
			g.VersionedResources[r.Version] = mappedResources(r)
			if g.Group.PreferredVersion.Version == "" {
				g.Group.PreferredVersion = version
			}
		}
	}
	return all
}

// mappedResources returns the fields of a group version's resources that a RESTMapper needs.
func mappedResources(r *remote.Documents) []metav1.APIResource {
	var all []metav1.APIResource
	for _, of := range r.Discovery.Resources {
		if of.ResponseKind == nil {
			continue
		}
		all = append(all, metav1.APIResource{
			Name: of.Resource, SingularName: of.SingularResource, Namespaced: of.Scope == discoveryv2.ScopeNamespace,
			Group: of.ResponseKind.Group, Version: of.ResponseKind.Version, Kind: of.ResponseKind.Kind, Verbs: of.Verbs,
		})
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
