package builtin

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/resource"
)

// TestResourceOfKind: the resource of a kind of parameters is found in the current catalog, in a served version.
func TestResourceOfKind(t *testing.T) {
	catalog := &resource.CatalogHolder{}
	catalog.Publish(resource.NewCatalog())
	find := resourceOf(catalog)
	kind := schema.GroupVersionKind{Version: "v1", Kind: "ConfigMap"}
	if _, err := find(kind); !meta.IsNoMatchError(err) {
		t.Errorf("an empty catalog: got %v", err)
	}
	catalog.Publish(resource.NewCatalog(Definitions(Options{})...))
	if got, err := find(kind); err != nil || got != kind.GroupVersion().WithResource("configmaps") {
		t.Errorf("a published kind: got %v, %v", got, err)
	}
	kind.Version = "v2"
	if _, err := find(kind); !meta.IsNoMatchError(err) {
		t.Errorf("another version: got %v", err)
	}
	if _, err := resourceOf(nil)(kind); !meta.IsNoMatchError(err) {
		t.Errorf("without a catalog: got %v", err)
	}
}
