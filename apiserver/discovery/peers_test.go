package discovery

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"

	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/discovery/aggregated"

	"quorate.dev/apiserver/peers"
)

// some returns names with a prefix, of which each list has some, in any order.
func some(random *rand.Rand, prefix string) []string {
	const most = 4
	var names []string
	for _, i := range random.Perm(most)[:1+random.IntN(most)] {
		names = append(names, fmt.Sprint(prefix, i))
	}
	return names
}

func someGroups(random *rand.Rand) (groups []discoveryv2.APIGroupDiscovery) {
	for _, group := range some(random, "g") {
		g := discoveryv2.APIGroupDiscovery{ObjectMeta: metav1.ObjectMeta{Name: group}}
		for _, version := range some(random, "v") {
			v := discoveryv2.APIVersionDiscovery{Version: version, Freshness: discoveryv2.DiscoveryFreshnessCurrent}
			for _, resource := range some(random, "r") {
				r := discoveryv2.APIResourceDiscovery{Resource: resource, Verbs: some(random, "verb")}
				for _, subresource := range some(random, "s") {
					r.Subresources = append(r.Subresources, discoveryv2.APISubresourceDiscovery{
						Subresource: subresource, Verbs: some(random, "verb"),
					})
				}
				v.Resources = append(v.Resources, r)
			}
			g.Versions = append(g.Versions, v)
		}
		groups = append(groups, g)
	}
	return groups
}

// TestMergePeers compares the merge with kube-apiserver's, whose replicas must list the same.
func TestMergePeers(t *testing.T) {
	const rounds = 200
	for seed := range uint64(rounds) {
		random := rand.New(rand.NewPCG(seed, 0))
		local := someGroups(random)
		set := &peers.Set{Peers: []peers.Peer{{ID: "a", Groups: someGroups(random)}, {ID: "c", Groups: local}}}
		want := aggregated.TestMergeResources("b", local, map[string][]discoveryv2.APIGroupDiscovery{
			"a": set.Peers[0].Groups, "c": set.Peers[1].Groups,
		})
		if got := mergePeers("b", local, set); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: got\n%v\nwant\n%v", seed, got, want)
		}
	}
}
