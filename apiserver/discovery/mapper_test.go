package discovery_test

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/discovery"
	"quorate.dev/apiserver/resource"
)

// TestMapperFollowsTheCatalog: a kind that was not found is found once it is published.
func TestMapperFollowsTheCatalog(t *testing.T) {
	widget := schema.GroupVersionKind{Group: "example.com", Version: "v1", Kind: "Widget"}
	definition := &resource.Definition{
		Source: resource.Custom, Group: widget.Group, Plural: "widgets", Singular: "widget",
		Kind: widget.Kind, Namespaced: true,
		Versions: []*resource.Version{{
			Name: widget.Version, Kind: widget, Endpoints: map[string]*resource.Endpoint{
				"": {Kind: widget, Verbs: []string{"get"}},
			},
		}},
	}
	publisher := &resource.CatalogHolder{}
	builtIn := builtin.Definitions(builtin.Options{})
	publisher.Publish(resource.NewCatalog(builtIn...))
	source := &remotes{}
	mapper := discovery.NewMapper(publisher, source)
	if _, err := mapper.RESTMappings(widget.GroupKind(), widget.Version); !meta.IsNoMatchError(err) {
		t.Fatalf("a kind that is not served: %v", err)
	}
	publisher.Publish(resource.NewCatalog(append(builtIn, definition)...))
	source.set = &remote.Set{Remote: []*remote.Documents{
		remoteVersion("batch", "v1", 17400, 15, "shadows"), remoteVersion("remote.example.com", "v1", 100, 15, "things"),
	}}
	for kind, want := range map[schema.GroupVersionKind]struct {
		resource string
		scope    meta.RESTScopeName
	}{
		widget:                       {"widgets", meta.RESTScopeNameNamespace},
		{Version: "v1", Kind: "Pod"}: {"pods", meta.RESTScopeNameNamespace},
		{Group: "remote.example.com", Version: "v1", Kind: "THINGS"}:             {"things", meta.RESTScopeNameRoot},
		{Group: "batch", Version: "v1", Kind: "SHADOWS"}:                         {"shadows", meta.RESTScopeNameRoot},
		{Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "ClusterRole"}: {"clusterroles", meta.RESTScopeNameRoot},
	} {
		mappings, err := mapper.RESTMappings(kind.GroupKind(), kind.Version)
		if err != nil || len(mappings) != 1 || mappings[0].Resource.Resource != want.resource ||
			mappings[0].Scope.Name() != want.scope {
			t.Errorf("%s: %v, %v", kind, mappings, err)
		}
	}
	batch := schema.GroupKind{Group: "batch", Kind: "Job"}
	if _, err := mapper.RESTMappings(batch, "v1"); !meta.IsNoMatchError(err) {
		t.Errorf("a kind of a group version of an extension API server: %v", err)
	}
	source.set = nil
	if _, err := mapper.RESTMappings(batch, "v1"); err != nil {
		t.Errorf("a kind of this server again: %v", err)
	}
}
