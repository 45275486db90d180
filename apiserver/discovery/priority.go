package discovery

import (
	"cmp"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/version"

	"quorate.dev/apiserver/builtin/priority"
	"quorate.dev/apiserver/resource"
)

// group is an API group with its versions, preferred first.
type group struct {
	name     string
	versions []resource.GroupVersion
}

// groups returns the groups of a catalog in the order of discovery. The core group is first.
func groups(catalog *resource.Catalog) []group {
	var all []group
	for _, gv := range catalog.GroupVersions() {
		if last := len(all) - 1; last >= 0 && all[last].name == gv.Group {
			all[last].versions = append(all[last].versions, gv)
		} else {
			all = append(all, group{name: gv.Group, versions: []resource.GroupVersion{gv}})
		}
	}
	for _, g := range all {
		slices.SortStableFunc(g.versions, func(a, b resource.GroupVersion) int {
			return -version.CompareKubeAwareVersionStrings(a.Version, b.Version)
		})
	}
	slices.SortFunc(all, func(a, b group) int {
		return cmp.Or(cmp.Compare(groupPriority(b.name), groupPriority(a.name)), cmp.Compare(a.name, b.name))
	})
	return all
}

// groupPriority sorts the core group, which only legacy discovery has, and the group of APIServices before all others.
func groupPriority(group string) int32 {
	if group == "" || group == registration {
		return math.MaxInt32
	}
	return priority.OfGroup(group)
}
