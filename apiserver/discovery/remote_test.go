package discovery_test

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/priority"
	"quorate.dev/apiserver/discovery"
	"quorate.dev/apiserver/peers"
	"quorate.dev/apiserver/resource"
)

func remoteVersion(group, version string, groupPriority, versionPriority int32, resources ...string) *remote.Documents {
	d := &remote.Documents{
		GroupVersion: schema.GroupVersion{Group: group, Version: version},
		Priority:     priority.Priority{Group: groupPriority, Version: versionPriority},
		Discovery:    discoveryv2.APIVersionDiscovery{Version: version, Freshness: discoveryv2.DiscoveryFreshnessCurrent},
	}
	for _, name := range resources {
		d.Discovery.Resources = append(d.Discovery.Resources, discoveryv2.APIResourceDiscovery{
			Resource: name, ResponseKind: &metav1.GroupVersionKind{Kind: strings.ToUpper(name)}, Scope: discoveryv2.ScopeCluster,
			Verbs: []string{"get"},
		})
	}
	return d
}

func withRemotes(t *testing.T, set *remote.Set, definitions ...*resource.Definition) (http.Handler, *remotes) {
	t.Helper()
	holder := &resource.CatalogHolder{}
	holder.Publish(resource.NewCatalog(append(builtin.Definitions(builtin.Options{ServiceAccountToken: noAction}),
		definitions...)...))
	source := &remotes{set}
	h, err := discovery.New(discovery.Options{
		Catalogs: holder, Remote: source, Addresses: discovery.Addresses{Default: "10.0.0.1:6443"},
		Peers: func() *peers.Set { return nil }, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		t.Fatal(err)
	}
	return h, source
}

// legacyList returns the group versions of /apis in order.
func legacyList(t *testing.T, h http.Handler) []string {
	t.Helper()
	var list metav1.APIGroupList
	if err := json.Unmarshal(get(h, "/apis").Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, g := range list.Groups {
		if g.PreferredVersion != g.Versions[0] {
			t.Errorf("%s prefers %s", g.Name, g.PreferredVersion)
		}
		for _, v := range g.Versions {
			all = append(all, v.GroupVersion)
		}
	}
	return all
}

// aggregatedList returns the group versions of the aggregated document in order, with resources and freshness.
func aggregatedList(t *testing.T, h http.Handler) (list discoveryv2.APIGroupDiscoveryList, all []string) {
	t.Helper()
	if err := json.Unmarshal(get(h, "/apis", "Accept", "application/json"+aggregated).Body.Bytes(), &list); err != nil {
		t.Fatal(err)
	}
	for _, g := range list.Items {
		for _, v := range g.Versions {
			all = append(all, g.Name+"/"+v.Version)
		}
	}
	return list, all
}

func checkOrder(t *testing.T, all []string, want ...string) {
	t.Helper()
	last := -1
	for _, gv := range want {
		i := slices.Index(all, gv)
		if i <= last {
			t.Errorf("%s is not after the ones before it in %v, want %v", gv, all, want)
		}
		last = i
	}
}

func TestRemoteGroups(t *testing.T) {
	h, _ := withRemotes(t, &remote.Set{Remote: []*remote.Documents{
		remoteVersion("new.example.com", "v1", 100, 15, "items"),
		remoteVersion("new.example.com", "v2beta1", 100, 20, "items"),
		remoteVersion("first.example.com", "v1", 17900, 15, "firsts"),
		remoteVersion("example.com", "v2", 1000, 100, "widgets"),
		remoteVersion("apps", "v1", 17800, 15, "shadows"),
	}}, widgets())
	want := []string{"apiregistration.k8s.io/v1", "first.example.com/v1", "apps/v1", "events.k8s.io/v1",
		"apiextensions.k8s.io/v1", "example.com/v2", "example.com/v1", "new.example.com/v2beta1", "new.example.com/v1"}
	checkOrder(t, legacyList(t, h), want...)
	list, all := aggregatedList(t, h)
	checkOrder(t, all, want...)
	if i := slices.IndexFunc(list.Items,
		func(g discoveryv2.APIGroupDiscovery) bool { return g.Name == "apps" }); len(list.Items[i].Versions) != 1 ||
		list.Items[i].Versions[0].Resources[0].Resource != "shadows" {
		t.Errorf("apps/v1 is not the remote one: %v", list.Items[i])
	}
	if w := get(h, "/apis/new.example.com"); !strings.Contains(
		w.Body.String(), `"preferredVersion":{"groupVersion":"new.example.com/v2beta1"`,
	) {
		t.Errorf("group: %d %s", w.Code, w.Body)
	}
}

func TestRemoteGroupVanishes(t *testing.T) {
	h, source := withRemotes(t, nil)
	tag := func() string { return get(h, "/apis", "Accept", "application/json"+aggregated).Header().Get("Etag") }
	before := tag()
	source.set = &remote.Set{Remote: []*remote.Documents{remoteVersion("new.example.com", "v1", 100, 15, "items")}}
	during := tag()
	if w := get(h, "/apis", "Accept", "application/json"+aggregated, "If-None-Match", before); w.Code != http.StatusOK ||
		during == before {
		t.Errorf("new group: %d", w.Code)
	}
	stale := remoteVersion("new.example.com", "v1", 100, 15, "items")
	stale.Discovery.Freshness = discoveryv2.DiscoveryFreshnessStale
	source.set = &remote.Set{Remote: []*remote.Documents{stale}}
	if tag() == during {
		t.Error("the tag does not depend on the freshness")
	}
	source.set = nil
	if after := tag(); after != before {
		t.Errorf("after the group is gone the tag is %s, want %s", after, before)
	}
	if w := get(h, "/apis/new.example.com"); w.Code != http.StatusNotFound {
		t.Errorf("a group that is gone: %d %s", w.Code, w.Body)
	}
}

// TestLocalAPIServices: priorities of this server's own APIServices change the legacy document only.
func TestLocalAPIServices(t *testing.T) {
	h, source := withRemotes(t, nil)
	_, before := aggregatedList(t, h)
	source.set = &remote.Set{
		Local: map[schema.GroupVersion]priority.Priority{
			{Group: "batch", Version: "v1"}:               {Group: 19000, Version: 15},
			{Group: "autoscaling", Version: "v1"}:         {Group: 17500, Version: 31},
			{Group: "nothing.example.com", Version: "v1"}: {Group: 10, Version: 10},
			{Version: "v1"}:                               {Group: 5, Version: 5},
		},
		Removed: map[schema.GroupVersion]bool{{Group: "policy", Version: "v1"}: true},
	}
	legacy := legacyList(t, h)
	checkOrder(t, legacy, "apiregistration.k8s.io/v1", "batch/v1", "apps/v1", "autoscaling/v1",
		"autoscaling/v2", "nothing.example.com/v1")
	if slices.Contains(legacy, "policy/v1") || slices.Contains(legacy, "v1") {
		t.Errorf("listed: %v", legacy)
	}
	if w := get(h, "/apis/policy"); w.Code != http.StatusOK {
		t.Errorf("a group without APIService: %d", w.Code)
	}
	if w := get(h, "/apis/nothing.example.com"); w.Code != http.StatusOK {
		t.Errorf("a group with nothing but an APIService: %d", w.Code)
	}
	if _, after := aggregatedList(t, h); !slices.Equal(before, after) {
		t.Errorf("aggregated: %v, want %v", after, before)
	}
}

// TestLegacyOrderOfEqualPriorities: kube-aggregator sorts APIServices of equal priority by name, which begins with the
// version.
func TestLegacyOrderOfEqualPriorities(t *testing.T) {
	earlier := widgets()
	earlier.Group, earlier.Versions[0].Name = "a.example.com", "v1beta1"
	h, _ := withRemotes(t, nil, earlier, widgets())
	checkOrder(t, legacyList(t, h), "example.com/v1", "a.example.com/v1beta1")
	_, all := aggregatedList(t, h)
	checkOrder(t, all, "a.example.com/v1beta1", "example.com/v1")
}
