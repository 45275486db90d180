package resource

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Catalog is an immutable set of definitions with indexes for routing.
type Catalog struct {
	definitions []*Definition
	groups      map[string]*Group
	// sorted has the groups, sorted by name.
	sorted []*Group
	// byPath has the built-in definitions by StoragePath. Definitions with the same path share their objects.
	byPath map[string][]*Definition
}

// Match is a resource in a certain version.
type Match struct {
	*Definition
	Version *Version
}

// NewCatalog returns a catalog. If several definitions have the same group, version and plural, the first one is
// served.
func NewCatalog(definitions ...*Definition) *Catalog { return new(Catalog).With(definitions...) }

// With returns a catalog of other definitions, which shares with c each Group whose definitions are the same in both.
func (c *Catalog) With(definitions ...*Definition) *Catalog {
	next := &Catalog{
		definitions: definitions, groups: make(map[string]*Group, len(c.groups)), byPath: map[string][]*Definition{},
	}
	byGroup := make(map[string][]*Definition, len(c.groups))
	for _, d := range definitions {
		byGroup[d.Group] = append(byGroup[d.Group], d)
		if d.Source == BuiltIn && d.StoragePath != "" {
			next.byPath[d.StoragePath] = append(next.byPath[d.StoragePath], d)
		}
	}
	for name, of := range byGroup {
		group := c.groups[name]
		if group == nil || !slices.Equal(group.definitions, of) {
			group = newGroup(name, of)
		}
		next.groups[name] = group
		next.sorted = append(next.sorted, group)
	}
	slices.SortFunc(next.sorted, func(a, b *Group) int { return cmp.Compare(a.Name, b.Name) })
	return next
}

// Lookup returns a served resource in the given version, and reports whether the catalog has it.
func (c *Catalog) Lookup(group, version, plural string) (Match, bool) {
	g := c.groups[group]
	if g == nil {
		return Match{}, false
	}
	m, ok := g.byName[versionedName{version, plural}]
	if ok && m.Source == Custom && g.BuiltIn {
		return Match{}, false
	}
	return m, ok
}

// Find returns a served resource in its preferred version, and reports whether the catalog has it.
func (c *Catalog) Find(resource schema.GroupResource) (Match, bool) {
	for _, d := range c.named(resource) {
		if len(d.Versions) > 0 {
			return Match{Definition: d, Version: d.Versions[0]}, true
		}
	}
	return Match{}, false
}

// Stored returns a custom resource in the version in which its objects are stored, which need not be served.
func (c *Catalog) Stored(resource schema.GroupResource) (Match, bool) {
	for _, d := range c.named(resource) {
		if d.Storage != nil {
			return Match{Definition: d, Version: d.Storage}, true
		}
	}
	return Match{}, false
}

// Successor returns the definition in this catalog that replaces a definition of an earlier catalog, or nil.
func (c *Catalog) Successor(of *Definition) *Definition {
	for _, d := range c.named(of.GroupResource()) {
		if d.Source == of.Source && d.StoragePath == of.StoragePath {
			return d
		}
	}
	return nil
}

func (c *Catalog) named(resource schema.GroupResource) []*Definition {
	if group := c.groups[resource.Group]; group != nil {
		return group.byPlural[resource.Resource]
	}
	return nil
}

// Equivalent returns the definitions that share the stored objects of d, including d: events are served in two groups.
// The caller must not change the slice.
func (c *Catalog) Equivalent(d *Definition) []*Definition {
	if d.Source == Custom || d.StoragePath == "" {
		return []*Definition{d}
	}
	return c.byPath[d.StoragePath]
}

// ResourceAt returns the resource whose objects are stored at a path. If several resources share the objects, it
// returns the resource of the core group. The paths of custom resources, served or not, begin with the group and the
// plural.
func (c *Catalog) ResourceAt(path string) schema.GroupResource {
	first, rest, _ := strings.Cut(path, "/")
	second, _, nested := strings.Cut(rest, "/")
	of := c.byPath[first]
	if of == nil && nested {
		of = c.byPath[path[:len(first)+1+len(second)]]
	}
	switch core := slices.IndexFunc(of, func(d *Definition) bool { return d.Group == "" }); {
	case core >= 0:
		return of[core].GroupResource()
	case of != nil:
		return of[0].GroupResource()
	case nested:
		return schema.GroupResource{Group: first, Resource: second}
	}
	return schema.GroupResource{Resource: first}
}

// Definitions returns all definitions in the order in which NewCatalog or With got them. The caller must not change the
// slice.
func (c *Catalog) Definitions() []*Definition { return c.definitions }

// BuiltIn reports whether a group has built-in kinds.
func (c *Catalog) BuiltIn(group string) bool {
	g := c.groups[group]
	return g != nil && g.BuiltIn
}

// Groups returns all groups, sorted by name. The caller must not change the slice.
func (c *Catalog) Groups() []*Group { return c.sorted }

// Group returns the group with the given name, or nil.
func (c *Catalog) Group(name string) *Group { return c.groups[name] }

// GroupVersions returns every group and version that discovery lists, sorted by group and, within a group, in the order
// in which the definitions have the versions. Custom resources are not listed in versions that have built-in kinds.
func (c *Catalog) GroupVersions() []GroupVersion {
	var all []GroupVersion
	for _, g := range c.sorted {
		all = append(all, g.Versions...)
	}
	return all
}

// CatalogHolder holds the current catalog. A request loads it once.
type CatalogHolder struct {
	current atomic.Pointer[Catalog]
}

// Publish replaces the current catalog.
func (p *CatalogHolder) Publish(c *Catalog) { p.current.Store(c) }

// Current returns the current catalog. It returns nil only before the first Publish.
func (p *CatalogHolder) Current() *Catalog { return p.current.Load() }
