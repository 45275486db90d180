package discovery_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/discovery"
	"quorate.dev/apiserver/resource"
)

// TestMapperFollowsTheCatalog: a kind that was not found is found once it is published.
func TestMapperFollowsTheCatalog(t *testing.T) {
	widget := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	definition := &resource.Definition{
		Source: resource.Custom, Group: widget.Group, Plural: "widgets", Singular: "widget", Kind: widget.Kind, Namespaced: true,
		Versions: []*resource.Version{{
			Name: widget.Version, Kind: widget, Endpoints: map[string]*resource.Endpoint{"": {Kind: widget, Verbs: []string{"get"}}},
		}},
	}
	publisher := &resource.CatalogHolder{}
	builtIn := builtin.Definitions(builtin.Options{})
	publisher.Publish(resource.NewCatalog(builtIn...))
	mapper := discovery.NewMapper(publisher)
	if _, err := mapper.RESTMappings(widget.GroupKind(), widget.Version); !meta.IsNoMatchError(err) {
		t.Fatalf("a kind that is not served: %v", err)
	}
	publisher.Publish(resource.NewCatalog(append(builtIn, definition)...))
	for kind, want := range map[schema.GroupVersionKind]struct {
		resource string
		scope    meta.RESTScopeName
	}{
		widget:                       {"widgets", meta.RESTScopeNameNamespace},
		{Version: "v1", Kind: "Pod"}: {"pods", meta.RESTScopeNameNamespace},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}: {"clusterroles", meta.RESTScopeNameRoot},
	} {
		mappings, err := mapper.RESTMappings(kind.GroupKind(), kind.Version)
		if err != nil || len(mappings) != 1 || mappings[0].Resource.Resource != want.resource || mappings[0].Scope.Name() != want.scope {
			t.Errorf("%s: %v, %v", kind, mappings, err)
		}
	}
}
