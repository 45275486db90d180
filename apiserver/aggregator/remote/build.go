package remote

import (
	"cmp"
	"slices"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/builtin/priority"
)

// Current returns the current Set. The first call after a change builds it.
func (c *Controller) Current() *Set {
	c.lock.Lock()
	defer c.lock.Unlock()
	if c.changed {
		c.changed = false
		c.current = c.build()
	}
	return c.current
}

// build returns a new Set, nil if there are no extension API servers and nothing else differs from the defaults. The
// caller holds c.lock. Remote is sorted by the priority of the group, then by the name of the APIService. That is the
// order in which kube-aggregator merges OpenAPI documents: within a group, its byPriority compares the priority of a
// version with itself.
func (c *Controller) build() *Set {
	set := &Set{Local: map[schema.GroupVersion]priority.Priority{}, Removed: map[schema.GroupVersion]bool{}}
	for gv := range c.removed {
		set.Removed[gv] = true
	}
	names := map[*Documents]string{}
	groups := map[string]int32{}
	for name, service := range c.services {
		if service.isRemote() {
			remote := c.servers[service.Server].remote(service)
			set.Remote = append(set.Remote, remote)
			names[remote] = name
			groups[service.Group] = max(groups[service.Group], service.Priority.Group)
		} else if place := deviation(service); place != nil {
			set.Local[service.GroupVersion] = *place
		}
	}
	slices.SortFunc(set.Remote, func(a, b *Documents) int {
		return cmp.Or(cmp.Compare(groups[b.Group], groups[a.Group]), cmp.Compare(names[a], names[b]))
	})
	if len(set.Remote)+len(set.Local)+len(set.Removed) == 0 {
		return nil
	}
	return set
}

// remote returns the documents of one APIService of the server. Without discovery, the group version is listed as stale
// and without resources, so that clients know that it exists.
func (s *server) remote(service *APIService) *Documents {
	gv := service.GroupVersion
	r := &Documents{
		GroupVersion: gv, Priority: service.Priority, V2: s.v2.versions[gv], Converted: s.v3.missing, V3: map[string]string{},
	}
	for _, path := range []string{"apis/" + gv.Group, "apis/" + gv.Group + "/" + gv.Version} {
		if url, ok := s.v3.paths[path]; ok {
			r.V3[path] = url
		}
	}
	discovered, ok := s.versions[gv]
	if !ok {
		discovered = discoveryv2.APIVersionDiscovery{Version: gv.Version, Freshness: discoveryv2.DiscoveryFreshnessStale}
	}
	r.Discovery = discovered
	return r
}
