package main

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"quorate.dev/release/manifest"
)

// generated returns the ClusterServiceVersion, the files of the bundle and the catalog.
func generated(t *testing.T) (manifest.Object, manifest.Directory, manifest.Directory) {
	t.Helper()
	r := release{root: "../..", version: "1.2.3", replaces: "quorate.v1.2.2"}
	if err := r.complete(); err != nil {
		t.Fatal(err)
	}
	bundle, catalog, err := r.generate()
	if err != nil {
		t.Fatal(err)
	}
	csv := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(bundle["manifests/quorate.clusterserviceversion.yaml"], &csv.Object); err != nil {
		t.Fatal(err)
	}
	return csv, bundle, catalog
}

func installed(t *testing.T) []manifest.Object {
	t.Helper()
	objects, err := manifest.Read("../../manifests/install.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// TestPermissions compares the permissions in the ClusterServiceVersion with the permissions in the manifests.
func TestPermissions(t *testing.T) {
	csv, bundle, _ := generated(t)
	granted := map[string]bool{}
	for _, field := range []string{"permissions", "clusterPermissions"} {
		permissions, _, err := unstructured.NestedSlice(csv.Object, "spec", "install", "spec", field)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range permissions {
			for _, rule := range p.(map[string]any)["rules"].([]any) {
				granted[encode(t, rule)] = true
			}
		}
	}
	required := map[string]bool{}
	for _, object := range installed(t) {
		if name := object.GetName(); strings.HasSuffix(object.GetKind(), "Role") && strings.HasPrefix(name, operator) {
			for _, rule := range object.Object["rules"].([]any) {
				required[encode(t, rule)] = true
			}
		}
	}
	if !reflect.DeepEqual(granted, required) {
		t.Errorf("granted:\n%v\nrequired:\n%v", granted, required)
	}
	for _, name := range []string{"quorate-edit", "quorate-view", "quorate-metrics-reader"} {
		if bundle["manifests/"+name+".clusterrole.yaml"] == nil {
			t.Errorf("the bundle has no ClusterRole %s", name)
		}
	}
}

func encode(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestDeployment(t *testing.T) {
	csv, _, _ := generated(t)
	text := encode(t, csv.Object["spec"].(map[string]any)["install"])
	tag, err := manifest.Tag("../..", "1.2.3")
	if err != nil {
		t.Fatal(err)
	}
	for want, times := range map[string]int{
		`"--namespaces=$(WATCH_NAMESPACE)"`:                          1,
		`"fieldPath":"metadata.annotations['olm.targetNamespaces']"`: 1,
		`"quorate:v` + tag + `"`:                                     2,
		`"serviceAccountName":"quorate-operator"`:                    3,
		`quorate:latest`:                                             0,
	} {
		if got := strings.Count(text, want); got != times {
			t.Errorf("%s occurs %d times, want %d", want, got, times)
		}
	}
}

// TestOwnedKinds checks the rules of OLM for owned kinds: each CustomResourceDefinition of the bundle is owned,
// described, and has an example.
func TestOwnedKinds(t *testing.T) {
	csv, bundle, catalog := generated(t)
	owned, _, err := unstructured.NestedSlice(csv.Object, "spec", "customresourcedefinitions", "owned")
	if err != nil {
		t.Fatal(err)
	}
	var examples []map[string]any
	if err := json.Unmarshal([]byte(csv.GetAnnotations()["alm-examples"]), &examples); err != nil {
		t.Fatal(err)
	}
	for _, o := range owned {
		kind := o.(map[string]any)
		if bundle["manifests/"+kind["name"].(string)+".crd.yaml"] == nil || kind["description"] == "" {
			t.Errorf("%s has no definition or no description", kind["name"])
		}
		if !slices.ContainsFunc(examples, func(e map[string]any) bool { return e["kind"] == kind["kind"] }) {
			t.Errorf("there is no example of %s", kind["kind"])
		}
		for _, field := range []string{"specDescriptors", "statusDescriptors"} {
			for _, d := range kind[field].([]any) {
				if d.(map[string]any)["description"] == "<nil>" {
					t.Errorf("%v of %s has no description", d, kind["kind"])
				}
			}
		}
		if !strings.Contains(string(catalog["quorate/catalog.yaml"]), "kind: "+kind["kind"].(string)) {
			t.Errorf("the catalog does not provide %s", kind["kind"])
		}
	}
	if definitions := manifest.OfKind(installed(t), "CustomResourceDefinition"); len(owned) != len(definitions) {
		t.Errorf("%d kinds are owned, want %d", len(owned), len(definitions))
	}
}

// TestMonitoring checks that the objects of the Prometheus operator are part of the bundle only on request, and
// optional.
func TestMonitoring(t *testing.T) {
	files := []string{
		"manifests/quorate-operator.servicemonitor.yaml", "manifests/quorate.prometheusrule.yaml", "metadata/properties.yaml",
	}
	for _, requested := range []bool{false, true} {
		r := release{root: "../..", version: "1.2.3", monitoring: requested}
		bundle, _, err := r.generate()
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if bundle[file] != nil != requested {
				t.Errorf("requested: %t, but %s:\n%s", requested, file, bundle[file])
			}
			if strings.Contains(string(bundle[file]), "namespace: ") {
				t.Errorf("%s names a namespace", file)
			}
		}
		for _, kind := range []string{"kind: ServiceMonitor", "kind: PrometheusRule", "olm.manifests.optional"} {
			if strings.Contains(string(bundle["metadata/properties.yaml"]), kind) != requested {
				t.Errorf("properties without %s:\n%s", kind, bundle["metadata/properties.yaml"])
			}
		}
	}
}

// TestUpgrade checks that the catalog and the ClusterServiceVersion agree about what the version replaces.
func TestUpgrade(t *testing.T) {
	csv, _, catalog := generated(t)
	replaces, _, _ := unstructured.NestedString(csv.Object, "spec", "replaces")
	if csv.GetName() != "quorate.v1.2.3" || replaces != "quorate.v1.2.2" ||
		csv.GetAnnotations()["olm.skipRange"] != ">=0.0.0 <1.2.3" {
		t.Errorf("%s replaces %q and %s", csv.GetName(), replaces, csv.GetAnnotations()["olm.skipRange"])
	}
	const entry = "entries:\n- name: quorate.v1.2.3\n  replaces: quorate.v1.2.2\n  skipRange: '>=0.0.0 <1.2.3'\n"
	if !strings.Contains(string(catalog["quorate/catalog.yaml"]), entry) {
		t.Errorf("the catalog has no\n%s", entry)
	}
}

func TestWords(t *testing.T) {
	for identifier, want := range map[string]string{
		"replicas": "Replicas", "extraSANs": "Extra SANs", "apiServices": "Api Services",
		"ApiServerCluster": "Api Server Cluster", "observedGeneration": "Observed Generation", "URLPath": "URL Path",
	} {
		if got := strings.Join(words(identifier), " "); got != want {
			t.Errorf("%s has the words %s, want %s", identifier, got, want)
		}
	}
}
