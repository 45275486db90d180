package compatibility

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/test/upstream"
)

// everything are the flags that enable all APIs in both servers. Admission plugins that add to objects, or need a
// service account, which no controller creates in this test, are disabled.
var everything = []string{
	"--runtime-config=api/all=true",
	"--feature-gates=CompositePodGroup=true,EvictionRequestAPI=true,GenericWorkload=true," +
		"TopologyAwareWorkloadScheduling=true",
	"--disable-admission-plugins=PodGroupProtection,ServiceAccount,StorageObjectInUseProtection,TaintNodesByCondition",
}

// TestEveryResourceIsStoredAlike creates upstream's object for every resource in every version, through one server and
// then through the other. The key and the stored version must be those in upstream's table, and the bytes must be
// equal.
func TestEveryResourceIsStoredAlike(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	both := startServers(t, everything...)
	both.kubernetes.create(t, "/api/v1/namespaces",
		`{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+namespace+`"}}`)
	entries, err := upstream.UpstreamResources(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	kinds := both.quorate.storedKinds(t)
	for _, name := range slices.SortedFunc(maps.Keys(kinds), func(a, b schema.GroupVersionResource) int {
		return strings.Compare(a.String(), b.String())
	}) {
		e, ok := entries[name]
		if !ok {
			t.Errorf("upstream's table has no %v", name)
			continue
		}
		t.Run(name.Group+"/"+name.Version+"/"+name.Resource, func(t *testing.T) { both.storeEntry(t, name, kinds[name], e) })
	}
	for name := range entries {
		custom := strings.HasSuffix(name.Group, ".com") // of definitions that upstream's test creates first
		if _, ok := kinds[name]; !ok && !custom {
			t.Errorf("%v is not served", name)
		}
	}
}

// served is a resource in discovery.
type served struct {
	Name, Kind string
	Namespaced bool
	Verbs      []string
}

// storedKinds returns the resources that can be created and read, from discovery.
func (s *server) storedKinds(t *testing.T) map[schema.GroupVersionResource]served {
	t.Helper()
	var groups struct {
		Groups []struct {
			Versions []struct{ GroupVersion string }
		}
	}
	s.decode(t, "/apis", &groups)
	documents := map[string]string{"v1": "/api/v1"}
	for _, group := range groups.Groups {
		for _, v := range group.Versions {
			documents[v.GroupVersion] = "/apis/" + v.GroupVersion
		}
	}
	kinds := map[schema.GroupVersionResource]served{}
	for groupVersion, path := range documents {
		var list struct{ Resources []served }
		s.decode(t, path, &list)
		gv, err := schema.ParseGroupVersion(groupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.Resources {
			if slices.Contains(r.Verbs, "create") && slices.Contains(r.Verbs, "get") && !strings.Contains(r.Name, "/") {
				kinds[gv.WithResource(r.Name)] = r
			}
		}
	}
	return kinds
}

func (s *server) decode(t *testing.T, path string, into any) {
	t.Helper()
	content, err := json.Marshal(s.get(t, path))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatal(err)
	}
}

// allocated are the values that servers allocate for a Service. They are fixed, so that both servers store the same.
var allocated = map[string]any{"clusterIP": "10.0.0.77", "allocateLoadBalancerNodePorts": false}

func (both *servers) storeEntry(
	t *testing.T, name schema.GroupVersionResource, kind served, e upstream.UpstreamResource,
) {
	t.Helper()
	var body object
	if err := json.Unmarshal([]byte(e.Stub), &body); err != nil {
		t.Fatal(err)
	}
	body["apiVersion"], body["kind"] = name.GroupVersion().String(), kind.Kind
	if kind.Kind == "Service" {
		maps.Copy(body["spec"].(map[string]any), allocated)
	}
	encoded, err := json.Marshal(body)
	if err != nil {
		t.Fatal(err)
	}
	collection := "/apis/" + name.GroupVersion().String() + "/"
	if name.Group == "" {
		collection = "/api/v1/"
	}
	if kind.Namespaced {
		collection += "namespaces/" + namespace + "/"
	}
	collection += name.Resource
	var stored [2][]byte
	for i, writer := range []*server{both.kubernetes, both.quorate} {
		created := writer.create(t, collection, string(encoded))
		stored[i] = neutral(t, both.at(t, writer, e.Path, created), created)
		both.remove(t, writer, collection+"/"+metadata(created)["name"].(string), e.Path)
	}
	if !bytes.Equal(stored[0], stored[1]) {
		t.Errorf("stored by kube-apiserver, then by quorate:\n%q\n%q", stored[0], stored[1])
	}
	want := e.Stored
	if want.Empty() {
		want = name.GroupVersion().WithKind(kind.Kind)
	}
	if !strings.Contains(string(stored[1]), want.Kind) ||
		!strings.Contains(string(stored[1]), want.GroupVersion().String()) {
		t.Errorf("not stored as %v: %.100q", want, stored[1])
	}
}

// at returns the value that was stored at the creation, which controllers may have changed since.
func (both *servers) at(t *testing.T, writer *server, path string, created object) []byte {
	t.Helper()
	revision, err := strconv.ParseInt(metadata(created)["resourceVersion"].(string), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	response, err := both.etcd.Get(t.Context(), path, clientv3.WithRev(revision))
	if err != nil {
		t.Fatal(err)
	}
	if len(response.Kvs) != 1 {
		t.Fatalf("%s stored nothing under %s", writer.name, path)
	}
	return response.Kvs[0].Value
}

// remove deletes an object and its finalizers, because no controller removes them in this test.
func (both *servers) remove(t *testing.T, writer *server, path, key string) {
	t.Helper()
	writer.delete(t, path)
	if _, err := both.etcd.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
}
