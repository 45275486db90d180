package resource

import (
	"cmp"
	"slices"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Catalog is an immutable set of definitions, indexed for routing.
type Catalog struct {
	definitions []*Definition
	byName      map[schema.GroupVersionResource]Match
	// builtIn are the groups with built-in kinds. As in kube-apiserver, a custom resource in such a group is not
	// served, although discovery lists it in versions without built-in kinds.
	builtIn map[string]bool
	// builtInVersions are the versions of those groups with built-in kinds.
	builtInVersions map[schema.GroupVersion]bool
	// byPath are the definitions that share a collection in storage.
	byPath map[string][]*Definition
}

// Match is a resource in one of its served versions.
type Match struct {
	*Definition
	Version *Version
}

// NewCatalog builds a catalog. Where two definitions claim the same group, version and plural the earlier wins.
func NewCatalog(definitions ...*Definition) *Catalog {
	c := &Catalog{
		definitions: definitions, byName: make(map[schema.GroupVersionResource]Match),
		builtIn: map[string]bool{}, builtInVersions: map[schema.GroupVersion]bool{}, byPath: map[string][]*Definition{},
	}
	for _, d := range definitions {
		if d.StoragePath != "" {
			c.byPath[d.StoragePath] = append(c.byPath[d.StoragePath], d)
		}
		if d.Source == BuiltIn {
			c.builtIn[d.Group] = true
		}
		for _, v := range d.Versions {
			if d.Source == BuiltIn {
				c.builtInVersions[schema.GroupVersion{Group: d.Group, Version: v.Name}] = true
			}
			name := schema.GroupVersionResource{Group: d.Group, Version: v.Name, Resource: d.Plural}
			if _, taken := c.byName[name]; !taken {
				c.byName[name] = Match{Definition: d, Version: v}
			}
		}
	}
	return c
}

// Lookup finds a served resource.
func (c *Catalog) Lookup(group, version, plural string) (Match, bool) {
	m, ok := c.byName[schema.GroupVersionResource{Group: group, Version: version, Resource: plural}]
	if ok && m.Source == Custom && c.builtIn[group] {
		return Match{}, false
	}
	return m, ok
}

// Find returns the definition of a resource in its preferred version.
func (c *Catalog) Find(resource schema.GroupResource) (Match, bool) {
	for _, d := range c.definitions {
		if d.Group == resource.Group && d.Plural == resource.Resource && len(d.Versions) > 0 {
			return Match{Definition: d, Version: d.Versions[0]}, true
		}
	}
	return Match{}, false
}

// Equivalent returns the definitions that share d's objects, d among them: events are served in two groups. The caller
// must not change the slice.
func (c *Catalog) Equivalent(d *Definition) []*Definition {
	if d.StoragePath == "" {
		return []*Definition{d}
	}
	return c.byPath[d.StoragePath]
}

// Definitions returns all definitions in the order given to NewCatalog. The caller must not change the slice.
func (c *Catalog) Definitions() []*Definition { return c.definitions }

// BuiltIn reports whether a group has built-in kinds.
func (c *Catalog) BuiltIn(group string) bool { return c.builtIn[group] }

// GroupVersion is one served version of one group with its resources.
type GroupVersion struct {
	Group     string
	Version   string
	Resources []Match
}

// GroupVersions returns every group and version that discovery lists, sorted by group and, within it, in order of
// first appearance; resources are sorted by plural. Custom resources in the versions of built-in kinds are not
// listed.
func (c *Catalog) GroupVersions() []GroupVersion {
	var all []GroupVersion
	index := map[schema.GroupVersion]int{}
	for _, d := range c.definitions {
		for _, v := range d.Versions {
			gv := schema.GroupVersion{Group: d.Group, Version: v.Name}
			if d.Source == Custom && c.builtInVersions[gv] {
				continue
			}
			i, ok := index[gv]
			if !ok {
				i = len(all)
				index[gv] = i
				all = append(all, GroupVersion{Group: d.Group, Version: v.Name})
			}
			if m := c.byName[gv.WithResource(d.Plural)]; m.Definition == d {
				all[i].Resources = append(all[i].Resources, m)
			}
		}
	}
	for i := range all {
		slices.SortFunc(all[i].Resources, func(a, b Match) int { return cmp.Compare(a.Plural, b.Plural) })
	}
	slices.SortStableFunc(all, func(a, b GroupVersion) int { return cmp.Compare(a.Group, b.Group) })
	return all
}

// CatalogHolder holds the current catalog. Requests load it once.
type CatalogHolder struct {
	current atomic.Pointer[Catalog]
}

// Publish replaces the current catalog.
func (p *CatalogHolder) Publish(c *Catalog) { p.current.Store(c) }

// Current returns the current catalog; never nil after the first Publish.
func (p *CatalogHolder) Current() *Catalog { return p.current.Load() }
