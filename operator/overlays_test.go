package operator

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"quorate.dev/test/upstream"
)

// TestOverlays renders the overlays of config/ with kubectl and compares them with the manifests.
func TestOverlays(t *testing.T) {
	upstream.NeedsProcesses(t)
	kubectl, err := upstream.Binary(t.Context(), "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	named := func(files ...string) map[string]*unstructured.Unstructured {
		objects := map[string]*unstructured.Unstructured{}
		for _, file := range files {
			for _, object := range documents(t, file) {
				objects[object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName()] = object
			}
		}
		return objects
	}
	const install, extension = "../manifests/install.yaml", "../manifests/extension.yaml"
	for overlay, want := range map[string]map[string]*unstructured.Unstructured{
		"default":        named(install),
		"namespaced":     named("../manifests/install-namespaced.yaml"),
		"rbac/extension": named(extension),
		"extension":      named(install, extension),
		"external-etcd":  named(install),
	} {
		command := exec.CommandContext(t.Context(), kubectl, "kustomize", filepath.Join("../config", overlay))
		var problems bytes.Buffer
		command.Stderr = &problems
		text, err := command.Output()
		if err != nil || problems.Len() > 0 {
			t.Fatalf("%s: %v\n%s", overlay, err, &problems) // warnings too, such as those of deprecated fields
		}
		file := filepath.Join(t.TempDir(), "rendered.yaml")
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		got := named(file)
		for name, object := range want {
			if got[name] == nil || !reflect.DeepEqual(got[name].Object, object.Object) {
				t.Errorf("%s: %s differs from manifests; run config/render.sh", overlay, name)
			}
			delete(got, name)
		}
		if overlay == "external-etcd" {
			checkExternal(t, got)
		}
		for name := range got {
			t.Errorf("%s: %s is not in manifests", overlay, name)
		}
	}
}

// checkExternal checks the objects of the overlay for an external etcd, and removes them.
func checkExternal(t *testing.T, objects map[string]*unstructured.Unstructured) {
	t.Helper()
	const namespace = "quorate-clusters"
	cluster, secret := objects["ApiServerCluster "+namespace+"/external"], objects["Secret "+namespace+"/etcd-client"]
	if cluster == nil || secret == nil || objects["Namespace /"+namespace] == nil {
		t.Fatalf("want a cluster, its Secret and its namespace: %v", objects)
	}
	name, _, err := unstructured.NestedString(cluster.Object, "spec", "etcd", "external", "secretRef", "name")
	if err != nil || name != secret.GetName() {
		t.Errorf("the cluster refers to Secret %q: %v", name, err)
	}
	data, _, err := unstructured.NestedStringMap(secret.Object, "data")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"ca.crt", corev1.TLSCertKey, corev1.TLSPrivateKeyKey} {
		if data[key] == "" {
			t.Errorf("the Secret has no %s", key)
		}
	}
	for _, name := range []string{
		"ApiServerCluster " + namespace + "/external", "Secret " + namespace + "/etcd-client", "Namespace /" + namespace,
	} {
		delete(objects, name)
	}
}
