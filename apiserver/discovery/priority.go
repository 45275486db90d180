package discovery

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/version"

	"quorate.dev/apiserver/resource"
)

// customPriority is the priority of groups that are not in groupPriorities: those of custom resources.
const customPriority = 1000

// groupPriorities order the groups in discovery, which is the order in which clients look for a short name.
var groupPriorities = map[string]int{
	"apiregistration.k8s.io":       20000,
	"apps":                         17800,
	"events.k8s.io":                17750,
	"authentication.k8s.io":        17700,
	"authorization.k8s.io":         17600,
	"autoscaling":                  17500,
	"batch":                        17400,
	"certificates.k8s.io":          17300,
	"networking.k8s.io":            17200,
	"policy":                       17100,
	"rbac.authorization.k8s.io":    17000,
	"storage.k8s.io":               16800,
	"admissionregistration.k8s.io": 16700,
	"apiextensions.k8s.io":         16700,
	"scheduling.k8s.io":            16600,
	"coordination.k8s.io":          16500,
	"node.k8s.io":                  16300,
	"discovery.k8s.io":             16200,
	"flowcontrol.apiserver.k8s.io": 16100,
	"internal.apiserver.k8s.io":    16000,
	"resource.k8s.io":              16200,
	"storagemigration.k8s.io":      15800,
}

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
		return cmp.Or(cmp.Compare(priority(b.name), priority(a.name)), cmp.Compare(a.name, b.name))
	})
	return all
}

func priority(group string) int {
	if group == "" {
		return 1 << 16
	}
	if known, ok := groupPriorities[group]; ok {
		return known
	}
	return customPriority
}
