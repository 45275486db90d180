package discovery

import (
	"cmp"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/version"

	"quorate.dev/apiserver/builtin/priority"
	"quorate.dev/apiserver/resource"
)

// group is an API group and its versions, the preferred version first.
type group struct {
	name     string
	priority int32
	versions []resource.GroupVersion
}

// groups returns the groups of a catalog in the order of discovery. The core group is the first.
func groups(catalog *resource.Catalog) []group {
	var all []group
	for _, g := range catalog.Groups() {
		if len(g.Versions) > 0 {
			all = append(all, newGroup(g))
		}
	}
	slices.SortFunc(all, compareGroups)
	return all
}

func newGroup(of *resource.Group) group {
	g := group{name: of.Name, priority: groupPriority(of.Name), versions: slices.Clone(of.Versions)}
	slices.SortStableFunc(g.versions, func(a, b resource.GroupVersion) int {
		return -version.CompareKubeAwareVersionStrings(a.Version, b.Version)
	})
	return g
}

func compareGroups(a, b group) int {
	return cmp.Or(cmp.Compare(b.priority, a.priority), cmp.Compare(a.name, b.name))
}

// groupPriority returns the priority of a group. The core group, which /apis omits, and the group of APIServices
// precede all others.
func groupPriority(group string) int32 {
	if group == "" || group == registration {
		return math.MaxInt32
	}
	return priority.OfGroup(group)
}
