package discovery

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/api/equality"
	utilsort "k8s.io/apimachinery/pkg/util/sort"

	"quorate.dev/apiserver/peers"
)

// profileNoPeer is the profile in the Accept header of clients that ask only for the resources that this replica
// serves.
const profileNoPeer = "nopeer"

// peerDocument is the aggregated discovery of all replicas, and the inputs that it was built from.
type peerDocument struct {
	docs *documents
	set  *peers.Set
	*aggregatedDocument
}

// withPeers returns the aggregated discovery of all replicas. The first request after a change builds it. If the other
// replicas serve the same as this one, it is this replica's own document.
func (h *Handler) withPeers(docs *documents) *aggregatedDocument {
	set := h.options.Peers()
	if set == nil {
		return docs.aggregated
	}
	if known := h.merged.Load(); known != nil && known.docs == docs && known.set == set {
		h.metrics.peerHits.Inc()
		return known.aggregatedDocument
	}
	h.metrics.peerMisses.Inc()
	merged := &peerDocument{docs, set, docs.aggregated}
	local := docs.aggregated.object().(*discoveryv2.APIGroupDiscoveryList).Items
	if all := mergePeers(h.options.ServerID, local, set); !equality.Semantic.DeepEqual(all, local) {
		merged.aggregatedDocument = newAggregated(partsOf(all))
	}
	h.merged.Store(merged)
	return merged.aggregatedDocument
}

func partsOf(groups []discoveryv2.APIGroupDiscovery) []part {
	all := make([]part, 0, len(groups))
	for _, g := range groups {
		all = append(all, part{
			name: g.Name, object: func() discoveryv2.APIGroupDiscovery { return g },
			encoded: sync.OnceValues(func() (encodedGroup, error) { return encodeGroup(g) }),
		})
	}
	return all
}

// mergePeers returns the union of the resources that the replicas serve. Every replica gets the same result, because
// the replicas are merged in the order of their IDs: the description of a group, version or resource by the first
// replica that serves it is kept, and so is the relative order of each list if possible. It mirrors kube-apiserver's
// merge.
func mergePeers(id string, local []discoveryv2.APIGroupDiscovery, set *peers.Set) []discoveryv2.APIGroupDiscovery {
	byID := map[string][]discoveryv2.APIGroupDiscovery{id: local}
	for _, peer := range set.Peers {
		byID[peer.ID] = peer.Groups
	}
	var lists [][]discoveryv2.APIGroupDiscovery
	for _, id := range slices.Sorted(maps.Keys(byID)) {
		lists = append(lists, byID[id])
	}
	return union(lists, func(g discoveryv2.APIGroupDiscovery) string { return g.Name }, mergeGroup)
}

// union merges lists of named elements. Elements with the same name are merged in the order of the lists.
func union[T any](lists [][]T, name func(T) string, merge func(a, b T) T) []T {
	byName := map[string]T{}
	names := make([][]string, 0, len(lists))
	for _, list := range lists {
		var of []string
		for _, element := range list {
			key := name(element)
			if known, ok := byName[key]; ok {
				element = merge(known, element)
			}
			byName[key] = element
			of = append(of, key)
		}
		names = append(names, of)
	}
	var all []T
	for _, key := range utilsort.MergePreservingRelativeOrder(names) {
		all = append(all, byName[key])
	}
	return all
}

func mergeGroup(a, b discoveryv2.APIGroupDiscovery) discoveryv2.APIGroupDiscovery {
	a.Versions = union([][]discoveryv2.APIVersionDiscovery{a.Versions, b.Versions},
		func(v discoveryv2.APIVersionDiscovery) string { return v.Version }, mergeVersion)
	return a
}

func mergeVersion(a, b discoveryv2.APIVersionDiscovery) discoveryv2.APIVersionDiscovery {
	a.Resources = union([][]discoveryv2.APIResourceDiscovery{a.Resources, b.Resources},
		func(r discoveryv2.APIResourceDiscovery) string { return r.Resource }, mergeResource)
	return a
}

// mergeResource merges the verbs and subresources of a resource, and sorts them unless both descriptions are equal.
func mergeResource(a, b discoveryv2.APIResourceDiscovery) discoveryv2.APIResourceDiscovery {
	if equality.Semantic.DeepEqual(a, b) {
		return a
	}
	a.Verbs = slices.Compact(slices.Sorted(slices.Values(slices.Concat(a.Verbs, b.Verbs))))
	byName := map[string]discoveryv2.APISubresourceDiscovery{}
	for _, subresource := range slices.Concat(a.Subresources, b.Subresources) {
		byName[subresource.Subresource] = subresource
	}
	a.Subresources = slices.SortedFunc(maps.Values(byName), func(x, y discoveryv2.APISubresourceDiscovery) int {
		return cmp.Compare(x.Subresource, y.Subresource)
	})
	return a
}
