package informers_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr/testr"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/cache"
	"k8s.io/kubernetes/pkg/apis/coordination"
	api "k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/informers"
	"quorate.dev/apiserver/resource"
)

// letters is an index function: the letters of an object's name.
func letters(object any) ([]string, error) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	all := strings.Split(accessor.GetName(), "")
	slices.Sort(all)
	return slices.Compact(all), nil
}

// numbers is an index function: the number in an object.
func numbers(object any) ([]string, error) {
	return []string{string(object.(*corev1.Secret).Data["n"])}, nil
}

// secret returns an object of which only the key matters.
func secret(namespace, name string) *corev1.Secret {
	return &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
}

// indexerReads returns reads of an indexer. The order of their results does not matter.
func indexerReads() map[string]func(cache.Indexer) ([]string, error) {
	one, other := secret("a", "one"), secret("", "nw")
	byIndex := func(name, value string) func(cache.Indexer) ([]string, error) {
		return func(i cache.Indexer) ([]string, error) { return keysOf(i.ByIndex(name, value)) }
	}
	index := func(name string, object any) func(cache.Indexer) ([]string, error) {
		return func(i cache.Indexer) ([]string, error) { return keysOf(i.Index(name, object)) }
	}
	indexKeys := func(name, value string) func(cache.Indexer) ([]string, error) {
		return func(i cache.Indexer) ([]string, error) { return i.IndexKeys(name, value) }
	}
	values := func(name string) func(cache.Indexer) ([]string, error) {
		return func(i cache.Indexer) ([]string, error) { return i.ListIndexFuncValues(name), nil }
	}
	return map[string]func(cache.Indexer) ([]string, error){
		"List":                   func(i cache.Indexer) ([]string, error) { return keysOf(i.List(), nil) },
		"ListKeys":               func(i cache.Indexer) ([]string, error) { return i.ListKeys(), nil },
		"Get":                    func(i cache.Indexer) ([]string, error) { return found(i.Get(one)) },
		"Get, missing":           func(i cache.Indexer) ([]string, error) { return found(i.Get(other)) },
		"Get, no object":         func(i cache.Indexer) ([]string, error) { return failure(i.Get("a/one")) },
		"GetByKey":               func(i cache.Indexer) ([]string, error) { return found(i.GetByKey("a/two")) },
		"GetByKey, missing":      func(i cache.Indexer) ([]string, error) { return found(i.GetByKey("two")) },
		"Index":                  index("letters", other),
		"Index, namespace":       index(cache.NamespaceIndex, one),
		"Index, no object":       index("letters", 1),
		"Index, no function":     index("none", one),
		"ByIndex":                byIndex("numbers", "0"),
		"ByIndex, changed":       byIndex("numbers", "1"),
		"ByIndex, missing":       byIndex("numbers", "2"),
		"ByIndex, namespace":     byIndex(cache.NamespaceIndex, "b"),
		"ByIndex, no namespace":  byIndex(cache.NamespaceIndex, "c"),
		"ByIndex, no function":   byIndex("none", "0"),
		"IndexKeys":              indexKeys("letters", "e"),
		"IndexKeys, namespace":   indexKeys(cache.NamespaceIndex, "a"),
		"IndexKeys, no function": indexKeys("none", "0"),
		"values":                 values("letters"),
		"values, namespace":      values(cache.NamespaceIndex),
		"values, no function":    values("none"),
		"GetIndexers": func(i cache.Indexer) ([]string, error) {
			return slices.Collect(maps.Keys(i.GetIndexers())), nil
		},
	}
}

func keysOf(objects []any, err error) (keys []string, _ error) {
	for _, object := range objects {
		key, err := cache.MetaNamespaceKeyFunc(object)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, err
}

// found returns the key of the object that Get or GetByKey has returned.
func found(object any, exists bool, err error) ([]string, error) {
	if err != nil || !exists {
		return []string{fmt.Sprint(object, exists)}, err
	}
	return keysOf([]any{object}, nil)
}

// failure returns whether Get has returned an error, whose text may differ.
func failure(_ any, _ bool, err error) ([]string, error) {
	return []string{fmt.Sprint(err != nil)}, nil
}

// TestIndexerReadsLikeClientGo compares the reads of an informer with the reads of client-go's indexer with the same
// objects, before and after objects change.
func TestIndexerReadsLikeClientGo(t *testing.T) {
	w, factory := open(t)
	informer := factory.Core().V1().Secrets().Informer()
	functions := cache.Indexers{
		cache.NamespaceIndex: cache.MetaNamespaceIndexFunc, "letters": letters, "numbers": numbers,
	}
	if err := informer.AddIndexers(functions); err != nil {
		t.Fatal(err)
	}
	indexer := informer.GetIndexer()
	numbered := func(want ...string) func() bool {
		return func() bool {
			keys, err := indexer.IndexKeys("numbers", "0")
			return err == nil && slices.Equal(keys, want)
		}
	}
	compare := func(when string) {
		oracle := cache.NewIndexer(cache.MetaNamespaceKeyFunc, functions)
		for _, object := range indexer.List() {
			if err := oracle.Add(object); err != nil {
				t.Fatal(err)
			}
		}
		for name, read := range indexerReads() {
			want, wantErr := read(oracle)
			got, err := read(indexer)
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
				t.Errorf("%s, %s: got %q, error %v, want %q, error %v", when, name, got, err, want, wantErr)
			}
		}
	}
	for _, key := range [][2]string{{"a", "one"}, {"a", "two"}, {"b", "one"}, {"b", "three"}} {
		create(t, w, key[0], key[1])
	}
	factory.Start(t.Context().Done())
	await(t, "synced", informer.HasSynced)
	await(t, "all objects are indexed", numbered("a/one", "a/two", "b/one", "b/three"))
	compare("at first")
	setNumber(t, w, "a", "one", "1")
	if err := w.Delete(
		t.Context(), resource.Key{GroupResource: secrets, Namespace: "b", Name: "three"}, &metav1.DeleteOptions{},
	); err != nil {
		t.Fatal(err)
	}
	await(t, "the changes are indexed", numbered("a/two", "b/one"))
	compare("after changes")
}

// setNumber changes the number in a Secret.
func setNumber(t *testing.T, w *world, namespace, name, number string) {
	t.Helper()
	key := resource.Key{GroupResource: secrets, Namespace: namespace, Name: name}
	_, err := w.Update(t.Context(), key, func(o runtime.Object) error {
		o.(*api.Secret).Data["n"] = []byte(number)
		return nil
	}, resource.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// TestIndexFunctionThatFails checks that an object for which an index function fails has no values, and that the other
// objects are indexed. client-go's indexer panics instead.
func TestIndexFunctionThatFails(t *testing.T) {
	w, factory := open(t)
	informer := factory.Core().V1().Secrets().Informer()
	err := informer.AddIndexers(cache.Indexers{"letters": func(object any) ([]string, error) {
		if object.(*corev1.Secret).Name == "one" {
			return []string{"o"}, errors.New("no index of one")
		}
		return letters(object)
	}})
	if err != nil {
		t.Fatal(err)
	}
	create(t, w, "a", "one")
	create(t, w, "a", "two")
	factory.Start(t.Context().Done())
	await(t, "synced", informer.HasSynced)
	await(t, "two is indexed", func() bool {
		keys, err := informer.GetIndexer().IndexKeys("letters", "w")
		return err == nil && slices.Equal(keys, []string{"a/two"})
	})
	if keys, err := informer.GetIndexer().IndexKeys("letters", "o"); err != nil || !slices.Equal(keys, []string{"a/two"}) {
		t.Errorf("got the keys %q, error %v", keys, err)
	}
}

// TestIndexersConflict checks that an index is not replaced by another one of the same name.
func TestIndexersConflict(t *testing.T) {
	w, factory := open(t)
	informer := factory.Core().V1().Secrets().Informer()
	if err := informer.AddIndexers(cache.Indexers{"index": letters}); err != nil {
		t.Fatal(err)
	}
	if err := informer.AddIndexers(cache.Indexers{"index": numbers}); err == nil ||
		err.Error() != "indexer conflict: index" {
		t.Errorf("got the error %v", err)
	}
	create(t, w, "a", "one")
	factory.Start(t.Context().Done())
	await(t, "synced with the first function", func() bool {
		return informer.HasSynced() && len(informer.GetIndexer().ListIndexFuncValues("index")) == 3
	})
}

// TestStoreIsReadOnly checks that the methods that would change the store of an informer return errors, and that the
// store stays the same.
func TestStoreIsReadOnly(t *testing.T) {
	w, factory := open(t)
	informer := factory.Core().V1().Secrets().Informer()
	create(t, w, "a", "one")
	factory.Start(t.Context().Done())
	await(t, "synced", informer.HasSynced)
	store, other := informer.GetStore(), secret("a", "other")
	for name, err := range map[string]error{
		"Add": store.Add(other), "Update": store.Update(other), "Delete": store.Delete(secret("a", "one")),
		"Replace":      store.Replace([]any{other}, "1"),
		"SetTransform": informer.SetTransform(func(any) (any, error) { return other, nil }),
	} {
		if err == nil {
			t.Errorf("%s succeeded", name)
		}
	}
	if err := informer.SetTransform(nil); err != nil {
		t.Errorf("no transform: %v", err)
	}
	if keys := store.ListKeys(); !slices.Equal(keys, []string{"a/one"}) {
		t.Errorf("got the keys %q", keys)
	}
}

// TestStoppedInformer checks that a stopped informer calls no handler and accepts none, and that its store still has
// the current objects: parts of the server that stop later read them.
func TestStoppedInformer(t *testing.T) {
	w, factory := open(t)
	informer := factory.Core().V1().Secrets().Informer()
	var told recorder
	if _, err := informer.AddEventHandler(&told); err != nil {
		t.Fatal(err)
	}
	create(t, w, "a", "one")
	stop := make(chan struct{})
	factory.Start(stop)
	await(t, "synced", informer.HasSynced)
	await(t, "the first event", func() bool { return told.has("add one=0 true") })
	if informer.IsStopped() {
		t.Error("the informer has stopped before it was stopped")
	}
	close(stop)
	factory.Shutdown()
	<-w.unfollow
	if !informer.IsStopped() {
		t.Error("the informer has not stopped")
	}
	if _, err := informer.AddEventHandler(&recorder{}); err == nil {
		t.Error("a handler was added to a stopped informer")
	}
	create(t, w, "a", "two")
	await(t, "the second object is read", func() bool { return len(informer.GetIndexer().ListKeys()) == 2 })
	if !told.has("add one=0 true") {
		t.Errorf("the handler got %q", told.log)
	}
}

// TestLastSyncResourceVersion checks the revision that upstream's controllers log and compare: none before the cache
// has been loaded, and then the revision of the last change.
func TestLastSyncResourceVersion(t *testing.T) {
	w, factory := open(t)
	informer := factory.Core().V1().Secrets().Informer()
	create(t, w, "a", "one")
	if version := informer.LastSyncResourceVersion(); version != "" {
		t.Errorf("got %q before the cache was loaded", version)
	}
	factory.Start(t.Context().Done())
	await(t, "synced", informer.HasSynced)
	for _, name := range []string{"one", "two"} {
		if name == "two" {
			create(t, w, "a", "two")
		}
		var object any
		await(t, name+" is read", func() (exists bool) {
			var err error
			object, exists, err = informer.GetIndexer().GetByKey("a/" + name)
			return err == nil && exists
		})
		if got, want := informer.LastSyncResourceVersion(), object.(*corev1.Secret).ResourceVersion; got != want {
			t.Errorf("after %s: got %s, want %s", name, got, want)
		}
	}
}

// TestAllHasEveryBuiltInKind reads objects of kinds that only controllers read, with typed informers that need no
// client.
func TestAllHasEveryBuiltInKind(t *testing.T) {
	w, _ := open(t)
	factory := informers.All(informers.Options{Source: w, Catalog: w.publisher, Logger: testr.New(t)})
	leases := factory.Coordination().V1().Leases()
	lister, synced := leases.Lister(), leases.Informer().HasSynced
	lease := &coordination.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "one"}}
	key := resource.Key{GroupResource: coordinationv1.Resource("leases"), Namespace: "a"}
	if _, err := w.Create(t.Context(), key, lease, resource.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	await(t, "synced", synced)
	await(t, "the lease is read", func() bool {
		lease, err := lister.Leases("a").Get("one")
		return err == nil && lease.Name == "one"
	})
	same := func(object any) (any, error) { return object, nil }
	compared := 0
	for _, definition := range w.publisher.Current().Definitions() {
		for _, version := range definition.Versions {
			name := schema.GroupVersionResource{Group: definition.Group, Version: version.Name, Resource: definition.Plural}
			informer, err := factory.ForResource(name)
			if err != nil || !slices.Contains(version.Endpoints[""].Verbs, "watch") {
				continue // client-go has no informer for CustomResourceDefinitions and APIServices
			}
			compared++
			if informer.Informer().SetTransform(same) == nil {
				t.Errorf("the informer for %s is one of client-go", name)
			}
		}
	}
	if compared < 50 {
		t.Errorf("client-go has informers for only %d resources", compared)
	}
}
