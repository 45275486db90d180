package builtin_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	apidiscovery "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/features"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/enablement"
	"quorate.dev/apiserver/kubelet"
	"quorate.dev/apiserver/resource"
	"quorate.dev/test/upstream"
)

// moduleDirectory returns the source directory of a module.
func moduleDirectory(t testing.TB, module string) string {
	t.Helper()
	output, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatalf("find module %s: %v", module, err)
	}
	return strings.TrimSpace(string(output))
}

func readJSON(t *testing.T, path string, into any) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
}

// served is the discovery information of a resource or, with a name such as "pods/status", a subresource.
type served struct {
	Singular   string
	Namespaced bool
	Kind       schema.GroupVersionKind
	Verbs      []string
	ShortNames []string
	Categories []string
}

// goldenDiscovery returns the resources that kube-apiserver serves with all versions and features.
func goldenDiscovery(t *testing.T) map[string]served {
	directory := filepath.Join(moduleDirectory(t, "k8s.io/kubernetes"), "api/discovery")
	all := map[string]served{}
	core := metav1.APIResourceList{}
	readJSON(t, filepath.Join(directory, "api__v1.json"), &core)
	for _, r := range core.APIResources {
		all["v1 "+r.Name] = served{
			r.SingularName, r.Namespaced, kindIn(r.Group, r.Version, r.Kind, schema.GroupVersion{Version: "v1"}), r.Verbs,
			r.ShortNames, r.Categories,
		}
	}
	groups := apidiscovery.APIGroupDiscoveryList{}
	readJSON(t, filepath.Join(directory, "aggregated_v2.json"), &groups)
	for _, group := range groups.Items {
		for _, version := range group.Versions {
			addVersion(all, schema.GroupVersion{Group: group.Name, Version: version.Version}, version.Resources)
		}
	}
	return all
}

func addVersion(all map[string]served, gv schema.GroupVersion, resources []apidiscovery.APIResourceDiscovery) {
	for _, r := range resources {
		namespaced := r.Scope == apidiscovery.ScopeNamespace
		all[gv.String()+" "+r.Resource] = served{
			r.SingularResource, namespaced, kindIn(r.ResponseKind.Group, r.ResponseKind.Version, r.ResponseKind.Kind, gv),
			r.Verbs, r.ShortNames, r.Categories,
		}
		for _, s := range r.Subresources {
			all[gv.String()+" "+r.Resource+"/"+s.Subresource] = served{
				"", namespaced, kindIn(s.ResponseKind.Group, s.ResponseKind.Version, s.ResponseKind.Kind, gv), s.Verbs, nil, nil,
			}
		}
	}
}

// kindIn completes a kind whose group and version are omitted because they equal the list's.
func kindIn(group, version, kind string, list schema.GroupVersion) schema.GroupVersionKind {
	if version == "" {
		return list.WithKind(kind)
	}
	return schema.GroupVersionKind{Group: group, Version: version, Kind: kind}
}

func describe(definitions []*resource.Definition) map[string]served {
	all := map[string]served{}
	for _, d := range definitions {
		for _, v := range d.Versions {
			name := schema.GroupVersion{Group: d.Group, Version: v.Name}.String() + " " + d.Plural
			for subresource, e := range v.Endpoints {
				if subresource == "" {
					all[name] = served{d.Singular, d.Namespaced, e.Kind, e.Verbs, d.ShortNames, d.Categories}
				} else {
					all[name+"/"+subresource] = served{"", d.Namespaced, e.Kind, e.Verbs, nil, nil}
				}
			}
		}
	}
	return all
}

func unusedKubelets() *kubelet.Kubelets {
	kubelets, err := kubelet.New(nil, kubelet.Options{Registerer: prometheus.NewRegistry()})
	if err != nil {
		panic(err)
	}
	return kubelets
}

var definitions = sync.OnceValue(func() []*resource.Definition {
	return builtin.Definitions(builtin.Options{ServiceAccountToken: unusedAction, Kubelets: unusedKubelets()})
})

// everything returns all definitions, including versions and features that are off by default.
func everything(t testing.TB) []*resource.Definition {
	t.Helper()
	for _, gate := range []featuregate.Feature{
		features.GenericWorkload, features.TopologyAwareWorkloadScheduling, features.CompositePodGroup,
		features.EvictionRequestAPI,
	} {
		featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, gate, true)
	}
	apis, err := builtin.Enable(map[string]string{"api/all": "true"}, enablement.Emulation{})
	if err != nil {
		t.Fatal(err)
	}
	return builtin.Definitions(builtin.Options{APIs: apis, ServiceAccountToken: unusedAction, Kubelets: unusedKubelets()})
}

func TestDefinitionsMatchUpstreamDiscovery(t *testing.T) {
	if diff := cmp.Diff(goldenDiscovery(t), describe(everything(t))); diff != "" {
		t.Errorf("discovery differs from upstream's (-want +got):\n%s", diff)
	}
}

// place is the storage path and version of a resource.
type place struct{ path, version string }

// goldenPlaces are the places in upstream's storage test.
func goldenPlaces(t *testing.T) map[schema.GroupVersionResource]place {
	t.Helper()
	const namespace = "namespace"
	upstream, err := upstream.UpstreamResources(t.Context(), namespace)
	if err != nil {
		t.Fatal(err)
	}
	places := map[schema.GroupVersionResource]place{}
	for name, r := range upstream {
		version := name.GroupVersion()
		if !r.Stored.Empty() {
			version = r.Stored.GroupVersion()
		}
		collection := strings.TrimSuffix(path.Dir(strings.TrimPrefix(r.Path, "/registry/")), "/"+namespace)
		places[name] = place{collection, version.String()}
	}
	return places
}

func TestDefinitionsAreStoredWhereUpstreamStores(t *testing.T) {
	golden := goldenPlaces(t)
	for _, d := range everything(t) {
		if d.StoragePath == "" || d.Plural == "componentstatuses" { // not stored
			continue
		}
		for _, v := range d.Versions {
			name := schema.GroupVersionResource{Group: d.Group, Version: v.Name, Resource: d.Plural}
			want, found := golden[name]
			if !found {
				t.Errorf("%v: upstream's table has no such resource", name)
				continue
			}
			if got := (place{d.StoragePath, d.StorageVersion.String()}); got != want {
				t.Errorf("%v: stored at %+v, want %+v", name, got, want)
			}
		}
	}
}
