package discovery

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/builtin/priority"
)

// place is the place of a group version in a document, which its priority determines.
type place struct {
	gv schema.GroupVersion
	at priority.Priority
}

// byVersion compares versions of a group, the preferred version first, as kube-aggregator's ByVersionPriority does.
func byVersion(a, b place) int {
	return cmp.Or(cmp.Compare(b.at.Version, a.at.Version),
		-version.CompareKubeAwareVersionStrings(a.gv.Version, b.gv.Version))
}

// registration is the group of APIServices. It precedes all other groups, and its versions have no APIService.
const registration = "apiregistration.k8s.io"

// defaultPriority returns the priority of a group version of this server.
func defaultPriority(gv schema.GroupVersion) priority.Priority {
	if gv.Group == registration {
		return priority.Priority{Group: math.MaxInt32}
	}
	if builtIn, ok := priority.BuiltIn(gv); ok {
		return builtIn
	}
	return priority.Custom
}

// legacyGroups returns the groups of the legacy document in the order of their priorities. local are the groups of this
// server; set has the APIServices.
func legacyGroups(local []*groupDocuments, set *remote.Set) []metav1.APIGroup {
	byName := map[string][]place{}
	for gv, p := range legacyPriorities(local, set) {
		byName[gv.Group] = append(byName[gv.Group], place{gv, p})
	}
	first := make(map[string]place, len(byName))
	for name, places := range byName {
		first[name] = slices.MinFunc(places, byObject)
		slices.SortFunc(places, byVersion)
	}
	merged := []metav1.APIGroup{}
	for _, name := range slices.SortedFunc(maps.Keys(byName), func(a, b string) int {
		return byObject(first[a], first[b])
	}) {
		merged = append(merged, groupOf(name, byName[name]))
	}
	return merged
}

// legacyPriorities returns the listed group versions with the priorities of their APIServices.
func legacyPriorities(local []*groupDocuments, set *remote.Set) map[schema.GroupVersion]priority.Priority {
	priorities := map[schema.GroupVersion]priority.Priority{}
	for _, g := range local {
		for _, v := range g.versions {
			gv := schema.GroupVersion{Group: g.name, Version: v.Version}
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
	// The core group is listed in /api.
	delete(priorities, schema.GroupVersion{Version: "v1"})
	return priorities
}

// byObject compares APIServices as kube-aggregator's ByGroupPriorityMinimum does: by the priority of the group, then by
// the name of the APIService. A group is at the place of its first APIService.
func byObject(a, b place) int {
	return cmp.Or(cmp.Compare(b.at.Group, a.at.Group),
		cmp.Compare(a.gv.Version+"."+a.gv.Group, b.gv.Version+"."+b.gv.Group))
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

// changedGroups returns the names of the groups that have versions in set.
func changedGroups(set *remote.Set) map[string]bool {
	names := map[string]bool{}
	if set == nil {
		return names
	}
	for gv := range set.Local {
		names[gv.Group] = true
	}
	for gv := range set.Removed {
		names[gv.Group] = true
	}
	for _, r := range set.Remote {
		names[r.Group] = true
	}
	return names
}

// mergedGroups returns the groups of the aggregated document that have versions of extension API servers, which take
// precedence over this server's own versions. As in kube-apiserver, the priorities of this server's own APIServices
// have no effect on the aggregated document.
func mergedGroups(local []*groupDocuments, set *remote.Set) map[string]*mergedGroup {
	if set == nil || len(set.Remote) == 0 {
		return nil
	}
	merged := map[string]*mergedGroup{}
	for _, r := range set.Remote {
		if merged[r.Group] == nil {
			merged[r.Group] = newMergedGroup(discoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: r.Group}})
		}
	}
	for _, g := range local {
		if merged[g.name] != nil {
			merged[g.name] = newMergedGroup(aggregate(g.group))
		}
	}
	for _, r := range set.Remote {
		merged[r.Group].set(r)
	}
	return merged
}

// mergedGroup is a group whose versions are served by several servers.
type mergedGroup struct {
	discoveryv2.APIGroupDiscovery
	// priorities has the priorities by version.
	priorities map[string]priority.Priority
}

func newMergedGroup(g discoveryv2.APIGroupDiscovery) *mergedGroup {
	m := &mergedGroup{APIGroupDiscovery: g, priorities: map[string]priority.Priority{}}
	for _, v := range g.Versions {
		m.priorities[v.Version] = defaultPriority(schema.GroupVersion{Group: g.Name, Version: v.Version})
	}
	return m
}

// set adds or replaces a version that an extension API server serves.
func (g *mergedGroup) set(r *remote.Documents) {
	g.priorities[r.Version] = r.Priority
	g.Versions = slices.DeleteFunc(g.Versions, func(v discoveryv2.APIVersionDiscovery) bool {
		return v.Version == r.Version
	})
	g.Versions = append(g.Versions, r.Discovery)
}

// part returns the group's part of the aggregated document. The priority of the group is the highest of its versions'
// priorities.
func (g *mergedGroup) part() part {
	p := part{name: g.Name, object: func() discoveryv2.APIGroupDiscovery { return g.APIGroupDiscovery }}
	for _, of := range g.priorities {
		p.priority = max(p.priority, of.Group)
	}
	slices.SortStableFunc(g.Versions, func(a, b discoveryv2.APIVersionDiscovery) int {
		return byVersion(
			place{schema.GroupVersion{Version: a.Version}, g.priorities[a.Version]},
			place{schema.GroupVersion{Version: b.Version}, g.priorities[b.Version]})
	})
	p.encoded = sync.OnceValues(func() (encodedGroup, error) { return encodeGroup(g.APIGroupDiscovery) })
	return p
}
