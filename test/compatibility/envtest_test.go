package compatibility

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/go-logr/logr/testr"
	core "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/yaml"

	"quorate.dev/test/genuine"
)

// TestEnvtest lets controller-runtime's test environment, as it is, start and stop our binary in kube-apiserver's place.
func TestEnvtest(t *testing.T) {
	log.SetLogger(testr.New(t))
	environment := &envtest.Environment{BinaryAssetsDirectory: assets(t), CRDs: []*apiextensions.CustomResourceDefinition{widgets(t)}}
	config, err := environment.Start()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	}()
	objects, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	settings := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Namespace: "default", Name: "settings"}, Data: map[string]string{"a": "b"}}
	roundTrip(t, objects, settings, &core.ConfigMap{})
	widget := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"namespace": "default", "name": "first"}, "spec": map[string]any{"color": "red"},
	}}
	read := &unstructured.Unstructured{}
	read.SetGroupVersionKind(widget.GroupVersionKind())
	roundTrip(t, objects, widget, read)
	if size, _, _ := unstructured.NestedInt64(read.Object, "spec", "size"); size != 3 {
		t.Errorf("the default of spec.size was not set: %v", read.Object["spec"])
	}
}

func roundTrip(t *testing.T, objects client.Client, written, read client.Object) {
	t.Helper()
	if err := objects.Create(t.Context(), written); err != nil {
		t.Fatal(err)
	}
	if err := objects.Get(t.Context(), client.ObjectKeyFromObject(written), read); err != nil {
		t.Fatal(err)
	}
	if read.GetUID() != written.GetUID() {
		t.Errorf("wrote %v, read %v", written.GetUID(), read.GetUID())
	}
}

// assets is a directory as setup-envtest makes it.
func assets(t *testing.T) string {
	directory := t.TempDir()
	quorate, err := genuine.Quorate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := genuine.Etcd(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"kube-apiserver": quorate, "etcd": etcd} {
		if err := os.Symlink(target, filepath.Join(directory, name)); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

func widgets(t *testing.T) *apiextensions.CustomResourceDefinition {
	decoded := &apiextensions.CustomResourceDefinition{}
	if err := yaml.Unmarshal([]byte(definition("widgets", "Widget")), decoded); err != nil {
		t.Fatal(err)
	}
	return decoded
}
