package resource

import (
	"cmp"
	"slices"
)

// Group has the resources of one API group. It is immutable. Catalogs with the same definitions of a group share the
// Group, so that the pointer identifies the content: documents and hashes of a group are cached by pointer.
type Group struct {
	Name string
	// BuiltIn is set for groups with built-in kinds. As in kube-apiserver, a custom resource in such a group is not
	// served, although discovery lists it in versions without built-in kinds.
	BuiltIn bool
	// Versions has the versions that discovery lists, in the order in which the definitions have them.
	Versions []GroupVersion

	definitions []*Definition
	byName      map[versionedName]Match
	byPlural    map[string][]*Definition
}

// GroupVersion is one served version of one group and its resources, sorted by plural.
type GroupVersion struct {
	Group     string
	Version   string
	Resources []Match
}

type versionedName struct{ version, plural string }

func newGroup(name string, definitions []*Definition) *Group {
	g := &Group{
		Name: name, definitions: definitions,
		byName:   make(map[versionedName]Match, len(definitions)),
		byPlural: make(map[string][]*Definition, len(definitions)),
	}
	builtInVersions := map[string]bool{}
	for _, d := range definitions {
		g.byPlural[d.Plural] = append(g.byPlural[d.Plural], d)
		g.BuiltIn = g.BuiltIn || d.Source == BuiltIn
		for _, v := range d.Versions {
			builtInVersions[v.Name] = builtInVersions[v.Name] || d.Source == BuiltIn
			name := versionedName{v.Name, d.Plural}
			if _, taken := g.byName[name]; !taken {
				g.byName[name] = Match{Definition: d, Version: v}
			}
		}
	}
	g.list(builtInVersions)
	return g
}

// list sets Versions. It omits custom resources in versions that have built-in kinds.
func (g *Group) list(builtInVersions map[string]bool) {
	index := map[string]int{}
	for _, d := range g.definitions {
		for _, v := range d.Versions {
			if d.Source == Custom && builtInVersions[v.Name] {
				continue
			}
			i, ok := index[v.Name]
			if !ok {
				i = len(g.Versions)
				index[v.Name] = i
				g.Versions = append(g.Versions, GroupVersion{Group: g.Name, Version: v.Name})
			}
			if m := g.byName[versionedName{v.Name, d.Plural}]; m.Definition == d {
				g.Versions[i].Resources = append(g.Versions[i].Resources, m)
			}
		}
	}
	for i := range g.Versions {
		slices.SortFunc(g.Versions[i].Resources, func(a, b Match) int { return cmp.Compare(a.Plural, b.Plural) })
	}
}

// Definitions returns the definitions of the group, served or not. A nil Group has none. The caller must not change the
// slice.
func (g *Group) Definitions() []*Definition {
	if g == nil {
		return nil
	}
	return g.definitions
}
