package peers

import (
	"slices"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Set has the resources that the other replicas serve. It is immutable.
type Set struct {
	// Peers are sorted by ID.
	Peers []Peer
}

// Peer is another replica.
type Peer struct {
	ID string
	// Groups are the peer's aggregated discovery without the core group, and without the group versions of custom
	// resources and extension API servers, which every replica discovers itself.
	Groups []discoveryv2.APIGroupDiscovery

	resources sets.Set[schema.GroupVersionResource]
}

// serving returns the IDs of the peers that serve a resource. s may be nil.
func (s *Set) serving(resource schema.GroupVersionResource) []string {
	if s == nil {
		return nil
	}
	var ids []string
	for _, peer := range s.Peers {
		if peer.resources.Has(resource) {
			ids = append(ids, peer.ID)
		}
	}
	return ids
}

// newPeer returns a peer with the groups in its discovery. groups includes the core group.
func newPeer(id string, groups []discoveryv2.APIGroupDiscovery) *Peer {
	peer := &Peer{ID: id, resources: sets.New[schema.GroupVersionResource]()}
	for _, group := range groups {
		for _, version := range group.Versions {
			for _, resource := range version.Resources {
				peer.resources.Insert(schema.GroupVersionResource{
					Group: group.Name, Version: version.Version, Resource: resource.Resource,
				})
			}
		}
		// The document /apis omits the core group.
		if group.Name != "" {
			peer.Groups = append(peer.Groups, group)
		}
	}
	return peer
}

// without returns the peer without the excluded group versions.
func (p *Peer) without(excluded func(schema.GroupVersion) bool) Peer {
	filtered := Peer{ID: p.ID, resources: sets.New[schema.GroupVersionResource]()}
	for resource := range p.resources {
		if !excluded(resource.GroupVersion()) {
			filtered.resources.Insert(resource)
		}
	}
	for _, group := range p.Groups {
		group.Versions = slices.DeleteFunc(slices.Clone(group.Versions), func(v discoveryv2.APIVersionDiscovery) bool {
			return excluded(schema.GroupVersion{Group: group.Name, Version: v.Version})
		})
		if len(group.Versions) > 0 {
			filtered.Groups = append(filtered.Groups, group)
		}
	}
	return filtered
}
