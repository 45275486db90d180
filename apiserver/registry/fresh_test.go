package registry_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// named returns a target with another name.
func named(t resource.Target, name string) resource.Target {
	t.Name = name
	return t
}

// put creates a config map and returns its revision.
func (w *world) put(t *testing.T, name string) int64 {
	t.Helper()
	object, err := clientOf(w.registry).Create(t.Context(), configMap(""), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a"}, Data: map[string]string{"n": name},
	}, resource.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	revision, err := strconv.ParseInt(object.(*corev1.ConfigMap).ResourceVersion, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return revision
}

// Consistent reads go to storage if the cache does not catch up in time.
func TestReadsWhileTheCacheLags(t *testing.T) {
	t.Parallel() // each read waits some seconds for the cache
	w := openWorld(t, etcdtest.Client(t), configMaps())
	w.put(t, "one")
	if _, err := w.registry.List(t.Context(), w.target, registry.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	w.stop()
	w.put(t, "two")
	third := w.put(t, "three")
	t.Run("get", func(t *testing.T) {
		t.Parallel()
		entry, err := w.registry.Get(t.Context(), named(w.target, "three"), "")
		if err != nil || entry.Revision() != third {
			t.Errorf("got %v, %v", entry, err)
		}
	})
	t.Run("get a missing object", func(t *testing.T) {
		t.Parallel()
		if _, err := w.registry.Get(t.Context(), named(w.target, "four"), ""); !apierrors.IsNotFound(err) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("list", func(t *testing.T) {
		t.Parallel()
		page, err := w.registry.List(t.Context(), w.target, registry.ListOptions{Limit: 2})
		if err != nil || len(page.Entries) != 2 || page.Entries[1].Name() != "three" ||
			page.Revision != third || page.Continue == "" {
			t.Fatalf("got %+v, %v", page, err)
		}
		rest, err := w.registry.List(t.Context(), w.target, registry.ListOptions{Limit: 2, Continue: page.Continue})
		if err != nil || len(rest.Entries) != 1 || rest.Entries[0].Name() != "two" {
			t.Errorf("then %+v, %v", rest, err)
		}
	})
	t.Run("watch", func(t *testing.T) {
		t.Parallel()
		_, err := w.registry.Watch(t.Context(), w.target, registry.WatchOptions{InitialEvents: true})
		if cause, ok := apierrors.StatusCause(err, metav1.CauseTypeResourceVersionTooLarge); !ok {
			t.Errorf("got %v, %v", err, cause)
		}
	})
}

// TestListWithoutFallback checks that a consistent list of a lagging cache fails with the gate
// ConsistentListFromCacheSkipTimeoutFallback.
func TestListWithoutFallback(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
		features.ConsistentListFromCacheSkipTimeoutFallback, true)
	w := openWorld(t, etcdtest.Client(t), configMaps())
	w.put(t, "one")
	w.list(t, registry.ListOptions{})
	w.stop()
	latest := w.put(t, "two")
	_, err := w.registry.List(t.Context(), w.target, registry.ListOptions{})
	want := fmt.Sprintf("Too large resource version: %d, current: ", latest)
	if seconds, retry := apierrors.SuggestsClientDelay(err); !apierrors.IsTooManyRequests(err) ||
		!strings.HasPrefix(err.Error(), want) || !retry || seconds != 1 {
		t.Errorf("got %v, retry %t after %d s; want %s", err, retry, seconds, want)
	}
}

// Without initial events a watch starts at the current revision, or at any cached one.
func TestWatchWithoutInitialEvents(t *testing.T) {
	w := openWorld(t, etcdtest.Client(t), configMaps())
	w.put(t, "before")
	for name, resourceVersion := range map[string]string{"now": "", "any": "0"} {
		if _, err := w.registry.Get(t.Context(), named(w.target, "before"), ""); err != nil {
			t.Fatal(err)
		}
		changes, err := w.registry.Watch(t.Context(), w.target, registry.WatchOptions{ResourceVersion: resourceVersion})
		if err != nil {
			t.Fatal(err)
		}
		w.put(t, name)
		events, _, err := changes.Next(t.Context())
		if err != nil || len(events) != 1 || events[0].Type != watch.Added ||
			events[0].Entry.Name() != name || changes.Initial != nil {
			t.Errorf("from %q: %+v, %v, after %v", resourceVersion, events, err, changes.Initial)
		}
		changes.Close()
	}
}

// custom is the definition of config maps as a custom resource with one selectable field.
func custom(field string) *resource.Definition {
	d := configMaps()
	d.Source, d.Revision = resource.Custom, field
	d.Fields = func(internal runtime.Object) (fields.Set, error) {
		return fields.Set{field: internal.(*corev1.ConfigMap).Data["n"]}, nil
	}
	return d
}

// A request that was routed to the old definition uses the cache of the new one, once it is published.
func TestRequestsOverlapANewDefinition(t *testing.T) {
	w := openWorld(t, etcdtest.Client(t), custom("old"))
	old := w.target
	next := custom("new")
	w.publisher.Publish(resource.NewCatalog(next))
	w.registry.Release(old.Definition)
	w.put(t, "one")
	if _, err := w.registry.Get(t.Context(), named(old, "one"), ""); err != nil {
		t.Fatal(err)
	}
	w.target.Match = resource.Match{Definition: next, Version: next.Versions[0]}
	page, err := w.registry.List(t.Context(), w.target, registry.ListOptions{
		Selection: registry.Selection{Field: fields.OneTermEqualSelector("new", "one")},
	})
	if err != nil || len(page.Entries) != 1 {
		t.Errorf("selected by the new field: %+v, %v", page, err)
	}
}

// A request that was routed to a definition fails with NotFound once the definition is gone.
func TestRequestsOverlapAnEnd(t *testing.T) {
	w := openWorld(t, etcdtest.Client(t), custom("old"))
	w.put(t, "one")
	changes, err := w.registry.Watch(t.Context(), w.target, registry.WatchOptions{InitialEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Close()
	w.publisher.Publish(resource.NewCatalog())
	w.registry.Release(w.target.Definition)
	if _, _, err := changes.Next(t.Context()); !errors.Is(err, watchcache.ErrDropped) {
		t.Errorf("an established watch: %v", err)
	}
	expectGone := func(what string, err error) {
		t.Helper()
		var status apierrors.APIStatus
		if !errors.As(err, &status) || status.Status().Code != http.StatusNotFound {
			t.Errorf("%s: %v", what, err)
		}
	}
	_, err = w.registry.Get(t.Context(), named(w.target, "one"), "")
	expectGone("read", err)
	_, err = w.registry.List(t.Context(), w.target, registry.ListOptions{})
	expectGone("list", err)
	_, err = w.registry.Watch(t.Context(), w.target, registry.WatchOptions{InitialEvents: true})
	expectGone("watch", err)
	if w.registry.Cache(w.target.Match).Loaded() {
		t.Error("the collection is cached")
	}
	w.publisher.Publish(resource.NewCatalog(custom("old")))
	if _, err := w.registry.Get(t.Context(), named(w.target, "one"), ""); err != nil {
		t.Errorf("served again: %v", err)
	}
}

// allocations counts the calls of a reserver that allocates for updates.
type allocations struct{ reserved, released int }

func (*allocations) Allocates(schema.GroupResource) bool { return true }

func (a *allocations) Reserve(context.Context, *admission.Attributes) error { a.reserved++; return nil }

func (a *allocations) Rollback(context.Context, *admission.Attributes) { a.released++ }

func (*allocations) Commit(context.Context, *admission.Attributes) {}

// An update that allocates does so once, although the cached object is stale.
func TestUpdateAllocatesOnceWhileTheCacheLags(t *testing.T) {
	t.Parallel()
	var calls allocations
	chain := &admission.Chain{Reservers: []admission.Reserver{&calls}}
	w := openAdmitted(t, etcdtest.Client(t), configMaps(), chain)
	w.put(t, "one")
	if _, err := w.registry.Get(t.Context(), named(w.target, "one"), ""); err != nil {
		t.Fatal(err)
	}
	w.stop()
	for i := range 2 {
		patch := change.Patch{Type: types.MergePatchType, Data: fmt.Appendf(nil, `{"data":{"m":"%d"}}`, i)}
		calls = allocations{}
		if _, err := w.registry.Patch(t.Context(), named(w.target, "one"), patch, registry.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
		if calls != (allocations{reserved: 1}) {
			t.Errorf("update %d: got %+v, want one allocation", i, calls)
		}
	}
}
