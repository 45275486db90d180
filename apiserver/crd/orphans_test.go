package crd_test

import (
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

func TestFindOrphans(t *testing.T) {
	client := etcdtest.Client(t)
	store := storage.New(client, "/registry")
	find := func() []crd.Orphans {
		t.Helper()
		found, err := crd.FindOrphans(t.Context(), store)
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	if found := find(); len(found) > 0 {
		t.Errorf("in an empty store: %v", found)
	}
	for _, key := range []string{
		"/registry/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com",
		// The next key is not the key of the definition of gadgets.example.com.
		"/registry/apiextensions.k8s.io/customresourcedefinitions/gadgets.example.com.au",
		"/registry/apiregistration.k8s.io/apiservices/v1.apps",
		"/registry/coordination.k8s.io/leases/a/b",
		"/registry/example.com/gadgets/a/one", "/registry/example.com/gadgets/b/two",
		"/registry/example.com/widgets/a/one",
		"/registry/example.org/clusterwide/one",
		"/registry/pods/a/b", "/registry/services/specs/a/b.c", "/registry/health", "/registry.other/example.net/things/a",
	} {
		if _, err := client.Put(t.Context(), key, "{}"); err != nil {
			t.Fatal(err)
		}
	}
	want := []crd.Orphans{
		{GroupResource: schema.GroupResource{Group: "example.com", Resource: "gadgets"}, Objects: 2},
		{GroupResource: schema.GroupResource{Group: "example.org", Resource: "clusterwide"}, Objects: 1},
	}
	if found := find(); !slices.Equal(found, want) {
		t.Errorf("got %v, want %v", found, want)
	}
}
