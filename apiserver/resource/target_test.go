package resource

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// TestTarget finds the targets of the server's own requests.
func TestTarget(t *testing.T) {
	t.Parallel()
	widgets := define(Custom, "example.com", "widgets", "v1")
	widgets.Namespaced, widgets.StoragePath, widgets.Storage = true, "example.com/widgets", &Version{Name: "v2"}
	unserved := define(Custom, "example.com", "gadgets")
	unserved.Storage = &Version{Name: "v3"}
	for _, version := range []*Version{widgets.Versions[0], widgets.Storage, unserved.Storage} {
		version.Endpoints = map[string]*Endpoint{"": {}, "status": {Subresource: "status"}}
	}
	catalog := NewCatalog(widgets, unserved)
	resource := widgets.GroupResource()
	for _, test := range []struct {
		name    string
		key     Key
		version string // empty if there is no target
	}{
		{"preferred version", Key{GroupResource: resource, Name: "x"}, "v1"},
		{"stored version", Key{GroupResource: resource, Stored: true}, "v2"},
		{"subresource", Key{GroupResource: resource, Subresource: "status"}, "v1"},
		{"missing subresource", Key{GroupResource: resource, Subresource: "scale"}, ""},
		{"missing resource", Key{GroupResource: schema.GroupResource{Resource: "pods"}}, ""},
		{"without a served version", Key{GroupResource: unserved.GroupResource()}, ""},
		{"without a served version, stored", Key{GroupResource: unserved.GroupResource(), Stored: true}, "v3"},
	} {
		target, err := catalog.Target(test.key)
		if test.version == "" {
			if !apierrors.IsNotFound(err) {
				t.Errorf("%s: got %+v, %v", test.name, target, err)
			}
			continue
		}
		if err != nil || target.Version.Name != test.version ||
			target.Endpoint.Subresource != test.key.Subresource || !target.Internal {
			t.Errorf("%s: got %+v, %v", test.name, target, err)
		}
	}
}

// TestPathsOfTargets returns the storage paths of objects and collections.
func TestPathsOfTargets(t *testing.T) {
	t.Parallel()
	body := Codec(nil)
	namespaced := Match{
		&Definition{StoragePath: "example.com/widgets", Namespaced: true}, &Version{Endpoints: map[string]*Endpoint{"": {}}},
	}
	global := Match{&Definition{StoragePath: "minions"}, &Version{}}
	for _, test := range []struct {
		target             Target
		prefix, collection string
	}{
		{Target{Match: namespaced}, "example.com/widgets/", "example.com/widgets/"},
		{Target{Match: namespaced, Namespace: "n"}, "example.com/widgets/n/", "example.com/widgets/n/"},
		{Target{Match: namespaced, Namespace: "n", Name: "x"}, "example.com/widgets/n/x", "example.com/widgets/n/"},
		{Target{Match: global, Name: "x"}, "minions/x", "minions/"},
		{Target{Match: global, Namespace: "n"}, "minions/", "minions/"},
	} {
		if prefix, collection := test.target.Prefix(), test.target.Collection(); prefix != test.prefix ||
			collection != test.collection {
			t.Errorf("got %s in %s, want %s in %s", prefix, collection, test.prefix, test.collection)
		}
	}
	x := Target{Match: namespaced, Namespace: "n", Endpoint: &Endpoint{Body: body}}.Named("x")
	if got := x.ObjectKey(x.Path()); got != "n/x" || x.Main() != namespaced.Version.Endpoints[""] ||
		x.BodyCodec() != body {
		t.Errorf("got the key %s", got)
	}
	if namespace, _ := request.NamespaceFrom(x.WithNamespace(t.Context())); namespace != "n" {
		t.Errorf("got the namespace %q", namespace)
	}
}
