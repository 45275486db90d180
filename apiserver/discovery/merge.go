package discovery

import (
	"cmp"
	"maps"
	"math"
	"slices"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/builtin/priority"
)

// place is where a group version comes in a document.
type place struct {
	gv schema.GroupVersion
	at priority.Priority
}

// byVersion sorts the versions of a group, preferred first: mirrors kube-aggregator's ByVersionPriority.
func byVersion(a, b place) int {
	return cmp.Or(cmp.Compare(b.at.Version, a.at.Version), -version.CompareKubeAwareVersionStrings(a.gv.Version, b.gv.Version))
}

// registration is the group of APIServices, which comes before all others. Its versions have no APIService.
const registration = "apiregistration.k8s.io"

// defaultPriority is the priority of a group version of this server.
func defaultPriority(gv schema.GroupVersion) priority.Priority {
	if gv.Group == registration {
		return priority.Priority{Group: math.MaxInt32}
	}
	if builtIn, ok := priority.BuiltIn(gv); ok {
		return builtIn
	}
	return priority.Custom
}

// legacyGroups returns the groups of the legacy document with the APIServices of set, in the order of their priorities.
// local are the groups of this server.
func legacyGroups(local []metav1.APIGroup, set *remote.Set) []metav1.APIGroup {
	byName := map[string][]place{}
	for gv, p := range legacyPriorities(local, set) {
		byName[gv.Group] = append(byName[gv.Group], place{gv, p})
	}
	first := make(map[string]place, len(byName))
	for name, places := range byName {
		first[name] = slices.MinFunc(places, compareGroups)
		slices.SortFunc(places, byVersion)
	}
	merged := []metav1.APIGroup{}
	for _, name := range slices.SortedFunc(maps.Keys(byName), func(a, b string) int {
		return compareGroups(first[a], first[b])
	}) {
		merged = append(merged, groupOf(name, byName[name]))
	}
	return merged
}

// legacyPriorities returns the listed group versions with the priorities of their APIServices.
func legacyPriorities(local []metav1.APIGroup, set *remote.Set) map[schema.GroupVersion]priority.Priority {
	priorities := map[schema.GroupVersion]priority.Priority{}
	for _, g := range local {
		for _, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			if set == nil || !set.Removed[gv] {
				priorities[gv] = defaultPriority(gv)
			}
		}
	}
	if set != nil {
		maps.Copy(priorities, set.Local)
		for _, r := range set.Remote {
			priorities[r.GroupVersion] = r.Priority
		}
	}
	delete(priorities, schema.GroupVersion{Version: "v1"}) // of the core group, listed in /api
	return priorities
}

// compareGroups sorts APIServices like kube-aggregator's ByGroupPriorityMinimum: equal priorities by the object's name. A
// group comes at the place of its first APIService.
func compareGroups(a, b place) int {
	return cmp.Or(cmp.Compare(b.at.Group, a.at.Group), cmp.Compare(a.gv.Version+"."+a.gv.Group, b.gv.Version+"."+b.gv.Group))
}

func groupOf(name string, places []place) metav1.APIGroup {
	g := metav1.APIGroup{Name: name}
	for _, p := range places {
		g.Versions = append(g.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: p.gv.String(), Version: p.gv.Version,
		})
	}
	g.PreferredVersion = g.Versions[0]
	return g
}

// aggregatedGroups returns the groups of the aggregated document with the group versions of extension API servers, which
// take precedence. local are the groups of this server in their order. As in kube-apiserver, priorities of this server's own
// APIServices have no effect here.
func aggregatedGroups(local []discoveryv2.APIGroupDiscovery, set *remote.Set) []discoveryv2.APIGroupDiscovery {
	if set == nil || len(set.Remote) == 0 {
		return local
	}
	byName := make(map[string]*mergedGroup, len(local)+len(set.Remote))
	for _, g := range local {
		byName[g.Name] = newMergedGroup(g)
	}
	for _, r := range set.Remote {
		g := byName[r.Group]
		if g == nil {
			g = newMergedGroup(discoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: r.Group}})
			byName[r.Group] = g
		}
		g.set(r)
	}
	merged := make([]discoveryv2.APIGroupDiscovery, 0, len(byName))
	for _, name := range slices.SortedFunc(maps.Keys(byName), func(a, b string) int {
		return cmp.Or(cmp.Compare(byName[b].priority(), byName[a].priority()), cmp.Compare(a, b))
	}) {
		merged = append(merged, byName[name].document())
	}
	return merged
}

// mergedGroup is a group with versions of several servers.
type mergedGroup struct {
	discoveryv2.APIGroupDiscovery
	priorities map[string]priority.Priority // by version; nil for a group of this server only
}

func newMergedGroup(g discoveryv2.APIGroupDiscovery) *mergedGroup {
	return &mergedGroup{APIGroupDiscovery: g}
}

// set adds or replaces a version.
func (g *mergedGroup) set(r *remote.Documents) {
	if g.priorities == nil {
		g.priorities = map[string]priority.Priority{}
		g.Versions = slices.Clone(g.Versions) // of this server's document
		for _, v := range g.Versions {
			g.priorities[v.Version] = defaultPriority(schema.GroupVersion{Group: g.Name, Version: v.Version})
		}
	}
	g.priorities[r.Version] = r.Priority
	g.Versions = slices.DeleteFunc(g.Versions, func(v discoveryv2.APIVersionDiscovery) bool { return v.Version == r.Version })
	g.Versions = append(g.Versions, r.Discovery)
}

// priority is the highest of all versions.
func (g *mergedGroup) priority() int32 {
	if g.priorities == nil {
		return groupPriority(g.Name)
	}
	var highest int32
	for _, p := range g.priorities {
		highest = max(highest, p.Group)
	}
	return highest
}

func (g *mergedGroup) document() discoveryv2.APIGroupDiscovery {
	if g.priorities != nil {
		slices.SortStableFunc(g.Versions, func(a, b discoveryv2.APIVersionDiscovery) int {
			return byVersion(
				place{schema.GroupVersion{Version: a.Version}, g.priorities[a.Version]},
				place{schema.GroupVersion{Version: b.Version}, g.priorities[b.Version]})
		})
	}
	return g.APIGroupDiscovery
}
