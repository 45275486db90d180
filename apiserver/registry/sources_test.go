package registry_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
)

// TestComputedObjects reads objects that are not stored, such as component statuses.
func TestComputedObjects(t *testing.T) {
	t.Parallel()
	definition := configMaps()
	endpoint := definition.Versions[0].Endpoints[""]
	endpoint.Compute = func(_ context.Context, name string) ([]runtime.Object, error) {
		all := []runtime.Object{newConfigMap("etcd-0"), newConfigMap("scheduler")}
		switch name {
		case "":
			return all, nil
		case "etcd-0":
			return all[:1], nil
		}
		return nil, apierrors.NewNotFound(configMapResource.WithVersion("").GroupResource(), name)
	}
	w := openWorld(t, etcdtest.Client(t), definition)
	if page := w.list(t, registry.ListOptions{}); len(page.Entries) != 2 || page.Meta().ResourceVersion != "" {
		t.Errorf("got %d objects at revision %q", len(page.Entries), page.Meta().ResourceVersion)
	}
	selected := registry.ListOptions{
		Selection: registry.Selection{Field: fields.OneTermEqualSelector("metadata.name", "scheduler")},
	}
	if page := w.list(t, selected); len(page.Entries) != 1 || page.Entries[0].Name() != "scheduler" {
		t.Errorf("got %d selected objects", len(page.Entries))
	}
	entry, err := w.registry.Get(t.Context(), named(w.target, "etcd-0"), "")
	if err != nil || entry.Name() != "etcd-0" {
		t.Errorf("got %v, %v", entry, err)
	}
	if _, err := w.registry.Get(t.Context(), named(w.target, "other"), ""); !apierrors.IsNotFound(err) {
		t.Errorf("a missing object: %v", err)
	}
	endpoint.Compute = func(context.Context, string) ([]runtime.Object, error) { return nil, errRefused }
	if _, err := w.registry.List(t.Context(), w.target, registry.ListOptions{}); err == nil {
		t.Error("the error is lost")
	}
}

// TestUncachedResources reads, lists, watches and changes objects of a resource that --watch-cache-sizes excludes from
// the watch cache.
func TestUncachedResources(t *testing.T) {
	t.Parallel()
	w := openConfigured(t, etcdtest.Client(t), configMaps(), func(o *registry.Options) {
		o.Uncached.Resources = map[schema.GroupResource]bool{configMapResource: true}
	})
	first, last := w.put(t, "one"), w.put(t, "two")
	future := fmt.Sprint(last + 1000)
	for _, version := range []string{"", "0", fmt.Sprint(first)} {
		if entry, err := w.registry.Get(t.Context(), named(w.target, "two"), version); err != nil ||
			entry.Revision() != last {
			t.Errorf("get at %q: %v", version, err)
		}
		page := w.list(t, registry.ListOptions{ResourceVersion: version})
		if len(page.Entries) != 2 {
			t.Errorf("list at %q: %d objects", version, len(page.Entries))
		}
		page.Close()
	}
	page := w.list(t, registry.ListOptions{Limit: 1})
	rest := w.list(t, registry.ListOptions{Limit: 1, Continue: page.Continue})
	if len(page.Entries) != 1 || *page.Remaining != 1 || len(rest.Entries) != 1 || rest.Continue != "" {
		t.Errorf("pages: %+v, %+v", page, rest)
	}
	page.Close()
	rest.Close()
	if _, err := w.registry.List(
		t.Context(), w.target, registry.ListOptions{ResourceVersion: future},
	); !apierrors.IsTimeout(err) {
		t.Errorf("list at a future revision: %v", err)
	}
	if _, err := w.registry.Get(t.Context(), named(w.target, "two"), future); !apierrors.IsTimeout(err) {
		t.Errorf("get at a future revision: %v", err)
	}
	for _, malformed := range []string{"x", "-1"} {
		if _, err := w.registry.Get(t.Context(), named(w.target, "two"), malformed); !apierrors.IsBadRequest(err) {
			t.Errorf("get at %q: %v", malformed, err)
		}
		if _, err := w.registry.List(
			t.Context(), w.target, registry.ListOptions{ResourceVersion: malformed},
		); !apierrors.IsBadRequest(err) {
			t.Errorf("list at %q: %v", malformed, err)
		}
	}
	if _, err := w.registry.Get(t.Context(), named(w.target, "missing"), ""); !apierrors.IsNotFound(err) {
		t.Errorf("get of a missing object: %v", err)
	}
	for _, version := range []string{"", "0", fmt.Sprint(last)} {
		w.watchesUncached(t, version, last)
	}
	_, err := w.registry.Watch(t.Context(), w.target, registry.WatchOptions{InitialEvents: true, ResourceVersion: future})
	if !apierrors.IsTimeout(err) {
		t.Errorf("watch at a future revision: %v", err)
	}
}

// watchesUncached watches one object from a version, with initial events, and changes it.
func (w *world) watchesUncached(t *testing.T, version string, last int64) {
	t.Helper()
	target := named(w.target, "two")
	changes, err := w.registry.Watch(t.Context(), target, registry.WatchOptions{
		InitialEvents: true, ResourceVersion: version,
	})
	if err != nil {
		t.Fatalf("watch from %q: %v", version, err)
	}
	defer changes.Close()
	if len(changes.Initial) != 1 || changes.Initial[0].Name() != "two" || changes.Start < last {
		t.Errorf("watch from %q begins at %d with %d objects", version, changes.Start, len(changes.Initial))
	}
	following, err := w.registry.Watch(t.Context(), target, registry.WatchOptions{
		ResourceVersion: fmt.Sprint(changes.Start),
	})
	if err != nil {
		t.Fatalf("watch after %d: %v", changes.Start, err)
	}
	defer following.Close()
	patch := change.Patch{
		Type: types.MergePatchType, Data: fmt.Appendf(nil, `{"data":{"from":%q}}`, version+time.Now().String()),
	}
	result, err := w.registry.Patch(t.Context(), target, patch, registry.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, each := range []*registry.Watch{changes, following} {
		for events := []registry.WatchEvent(nil); len(events) == 0; {
			if events, _, err = each.Next(t.Context()); err != nil {
				t.Fatal(err)
			}
			if len(events) > 0 && (events[0].Type != watch.Modified || events[0].Entry.Revision() != result.Revision) {
				t.Errorf("watch from %q: got %s at %d", version, events[0].Type, events[0].Entry.Revision())
			}
		}
	}
}

// TestMalformedRevisionsOfClients sends options that client-go never sends.
func TestMalformedRevisionsOfClients(t *testing.T) {
	t.Parallel()
	w := openWorld(t, etcdtest.Client(t), configMaps())
	w.put(t, "a")
	w.put(t, "b")
	page := w.list(t, registry.ListOptions{Limit: 1})
	for name, options := range map[string]registry.ListOptions{
		"revision":                  {ResourceVersion: "x"},
		"revision of a page":        {Continue: page.Continue, ResourceVersion: "7"},
		"token without an encoding": {Continue: "%"},
		"token of another resource": {Continue: "eyJ2IjoibWV0YS5rOHMuaW8vdjEiLCJydiI6NSwic3RhcnQiOiIvLi4vLi4vc2VjcmV0cy8ifQ"},
	} {
		if _, err := w.registry.List(t.Context(), w.target, options); !apierrors.IsBadRequest(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.registry.Watch(t.Context(), w.target, registry.WatchOptions{ResourceVersion: "x"}); err == nil {
		t.Error("a watch accepts a malformed revision")
	}
	if rest := w.list(
		t, registry.ListOptions{Continue: page.Continue, ResourceVersion: "0", Limit: 1},
	); len(rest.Entries) != 1 {
		t.Errorf("a continued list of any state has %d objects", len(rest.Entries))
	}
}

// TestExpiringObjects creates objects that etcd deletes after some time, as events are.
func TestExpiringObjects(t *testing.T) {
	t.Parallel()
	definition := configMaps()
	definition.TimeToLive = func(runtime.Object) time.Duration { return time.Hour }
	client := etcdtest.Client(t)
	w := openWorld(t, client, definition)
	w.put(t, "x")
	patch := change.Patch{Type: types.MergePatchType, Data: []byte(`{"data":{"a":"b"}}`)}
	for _, write := range []func() error{
		func() error { return nil },
		func() error {
			_, err := w.registry.Patch(t.Context(), named(w.target, "x"), patch, registry.WriteOptions{})
			return err
		},
	} {
		if err := write(); err != nil {
			t.Fatal(err)
		}
		stored, err := client.Get(t.Context(), "/registry/configmaps/a/x")
		if err != nil || len(stored.Kvs) != 1 || stored.Kvs[0].Lease == 0 {
			t.Errorf("the object has no lease: %v, %v", stored, err)
		}
	}
	_, err := w.registry.Get(t.Context(), named(w.target, "x"), "x")
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "invalid resource version") {
		t.Errorf("a malformed revision: %v", err)
	}
}

// TestOverrides selects the etcd of resources, as --etcd-servers-overrides does.
func TestOverrides(t *testing.T) {
	t.Parallel()
	events, apps := &registry.Storage{}, &registry.Storage{}
	overrides := registry.Overrides{{Resource: "events"}: events, {Group: "apps", Resource: "*"}: apps}
	for _, test := range []struct {
		group, plural string
		stored        string // group of the storage version
		source        resource.Source
		want          *registry.Storage
	}{
		{"", "events", "", resource.BuiltIn, events},
		{"events.k8s.io", "events", "", resource.BuiltIn, events},
		{"", "pods", "", resource.BuiltIn, nil},
		{"apps", "deployments", "apps", resource.BuiltIn, apps},
		{"apps", "deployments", "apps", resource.Custom, nil},
		{"apiregistration.k8s.io", "apiservices", "apiregistration.k8s.io", resource.BuiltIn, nil},
	} {
		definition := &resource.Definition{
			Group: test.group, Plural: test.plural, Source: test.source,
			StorageVersion: schema.GroupVersion{Group: test.stored, Version: "v1"},
		}
		if got := overrides.Of(definition); got != test.want {
			t.Errorf("%s.%s: got %p, want %p", test.plural, test.group, got, test.want)
		}
	}
	if registry.Overrides(nil).Of(&resource.Definition{}) != nil {
		t.Error("without overrides")
	}
}

// TestLargeObjectLosesManagedFields stores an object that is too large for etcd only because of its managed fields.
func TestLargeObjectLosesManagedFields(t *testing.T) {
	t.Parallel()
	w := openWorld(t, etcdtest.Client(t), configMaps())
	target := named(w.target, "x")
	managed := []metav1.ManagedFieldsEntry{{
		Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:` + strings.Repeat("x", 1<<20) + `":{}}}`),
	}}
	object := newConfigMap("x")
	object.Data, object.ManagedFields = map[string]string{"k": strings.Repeat("x", 1<<20)}, managed
	result, err := w.registry.Create(t.Context(), w.target, object.DeepCopy(), registry.WriteOptions{})
	if err != nil || len(result.Object.(*corev1.ConfigMap).ManagedFields) > 0 {
		t.Fatalf("create: %v", err)
	}
	object.Data["l"] = ""
	result, err = w.registry.Update(t.Context(), target, change.Replacement{Object: object}, registry.WriteOptions{})
	if err != nil || len(result.Object.(*corev1.ConfigMap).ManagedFields) > 0 {
		t.Fatalf("update: %v", err)
	}
	object.Data["l"] = strings.Repeat("x", 1<<20)
	if _, err := w.registry.Update(
		t.Context(), target, change.Replacement{Object: object}, registry.WriteOptions{},
	); err == nil {
		t.Error("an object of more than the limit of etcd is stored")
	}
}
