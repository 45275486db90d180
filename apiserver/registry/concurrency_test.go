package registry_test

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/apiserver/pkg/storage/names"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/registry/client"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// plain is a strategy that accepts everything.
type plain struct {
	runtime.ObjectTyper
	names.NameGenerator
}

func (plain) NamespaceScoped() bool                                                     { return true }
func (plain) PrepareForCreate(context.Context, runtime.Object)                          {}
func (plain) Validate(context.Context, runtime.Object) field.ErrorList                  { return nil }
func (plain) WarningsOnCreate(context.Context, runtime.Object) []string                 { return nil }
func (plain) Canonicalize(runtime.Object)                                               {}
func (plain) AllowCreateOnUpdate(context.Context) bool                                  { return false }
func (plain) AllowUnconditionalUpdate(context.Context) bool                             { return true }
func (plain) PrepareForUpdate(context.Context, runtime.Object, runtime.Object)          {}
func (plain) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string { return nil }
func (plain) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}

// configMaps is the definition of config maps whose internal version is v1.
func configMaps() *resource.Definition {
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	strategy := plain{clientscheme.Scheme, names.SimpleNameGenerator}
	scheme := codec.NewScheme(clientscheme.Scheme, clientscheme.Codecs, kind, kind.GroupVersion(), kind.GroupVersion())
	return &resource.Definition{
		Plural: "configmaps", Singular: "configmap", Kind: "ConfigMap", ListKind: "ConfigMapList", Namespaced: true,
		StoragePath: "configmaps", StorageVersion: kind.GroupVersion(),
		Fields: func(internal runtime.Object) (fields.Set, error) {
			return fields.Set{"metadata.name": internal.(*corev1.ConfigMap).Name}, nil
		},
		Versions: []*resource.Version{{Name: "v1", Kind: kind, Codec: scheme, Endpoints: map[string]*resource.Endpoint{
			"": {Kind: kind, Create: strategy, Update: strategy, Delete: strategy},
		}}},
	}
}

var configMapResource = schema.GroupResource{Resource: "configmaps"}

// open returns a registry with its own etcd.
func open(t *testing.T) (*registry.Registry, resource.Target) {
	t.Helper()
	r, target, _ := openStore(t)
	return r, target
}

func openStore(t *testing.T) (*registry.Registry, resource.Target, *storage.Store) {
	t.Helper()
	return openOn(t, etcdtest.Client(t), configMaps())
}

// openOn returns a registry of the given definition.
func openOn(
	t *testing.T, etcd *clientv3.Client, definition *resource.Definition,
) (*registry.Registry, resource.Target, *storage.Store) {
	t.Helper()
	w := openWorld(t, etcd, definition)
	return w.registry, w.target, w.store
}

// world is a registry of one resource and its dependencies.
type world struct {
	registry  *registry.Registry
	target    resource.Target
	store     *storage.Store
	caches    *watchcache.Caches
	publisher *resource.CatalogHolder
	stop      func() // ends the watch that keeps the caches up to date
}

func openWorld(t *testing.T, etcd *clientv3.Client, definition *resource.Definition) *world {
	t.Helper()
	return openAdmitted(t, etcd, definition, &admission.Chain{})
}

func openAdmitted(t *testing.T, etcd *clientv3.Client, definition *resource.Definition, chain *admission.Chain) *world {
	t.Helper()
	return openConfigured(t, etcd, definition, func(o *registry.Options) { o.Admission = chain })
}

// openConfigured is openWorld with options that configure changes.
func openConfigured(
	t *testing.T, etcd *clientv3.Client, definition *resource.Definition, configure func(*registry.Options),
) *world {
	t.Helper()
	store := storage.New(etcd, "/registry")
	caches := watchcache.New(store, watchcache.Options{Clock: clock.RealClock{}, Logger: testr.New(t)})
	watchcache.Register(prometheus.NewRegistry(), caches)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = caches.Run(ctx) })
	stop := func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	publisher := &resource.CatalogHolder{}
	publisher.Publish(resource.NewCatalog(definition))
	options := registry.Options{
		Store: store, Caches: caches, Catalog: publisher, Admission: &admission.Chain{},
		Clock: clock.RealClock{}, Logger: testr.New(t),
	}
	configure(&options)
	r := registry.New(options)
	match, _ := publisher.Current().Find(configMapResource)
	target := resource.Target{Match: match, Endpoint: match.Version.Endpoints[""], Namespace: "a"}
	return &world{registry: r, target: target, store: store, caches: caches, publisher: publisher, stop: stop}
}

// clientOf returns a client of a registry.
func clientOf(r *registry.Registry) *client.Client {
	return client.New(client.Options{Registry: r, Clock: clock.RealClock{}})
}

// Many writers increment a counter in one object: no increment is lost, and every watcher sees every value exactly
// once, in order.
func TestConcurrentWriters(t *testing.T) {
	const writers, increments, watchers = 8, 25, 6
	r, target := open(t)
	start := create(t, r)
	var watching, writing sync.WaitGroup
	for range watchers {
		w, err := r.Watch(t.Context(), target, registry.WatchOptions{ResourceVersion: start})
		if err != nil {
			t.Fatal(err)
		}
		watching.Go(func() {
			defer w.Close()
			if err := seesEach(t.Context(), w, writers*increments); err != nil {
				t.Error(err)
			}
		})
	}
	for writer := range writers {
		writing.Go(func() {
			for range increments {
				if err := increment(t.Context(), r, target, writer%2 == 0); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writing.Wait()
	watching.Wait()
	object, err := clientOf(r).Get(t.Context(), configMap("counter"), resource.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := object.(*corev1.ConfigMap).Data["n"]; got != strconv.Itoa(writers*increments) {
		t.Errorf("counted to %s", got)
	}
}

// configMap is the key of a config map, or of all of them for "".
func configMap(name string) resource.Key {
	return resource.Key{GroupResource: configMapResource, Namespace: "a", Name: name}
}

// create stores the counter and returns its revision.
func create(t *testing.T, r *registry.Registry) string {
	t.Helper()
	object, err := clientOf(r).Create(t.Context(), configMap(""), &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "counter", Namespace: "a"}, Data: map[string]string{"n": "0"},
	}, resource.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return object.(*corev1.ConfigMap).ResourceVersion
}

// increment increments the counter: by a change that the registry retries, or by a replacement that it retries itself
// after a conflict, like a client.
func increment(ctx context.Context, r *registry.Registry, target resource.Target, byChange bool) error {
	if byChange {
		_, err := clientOf(r).Update(ctx, configMap("counter"), up, resource.WriteOptions{})
		return err
	}
	target.Name = "counter"
	for {
		current, err := clientOf(r).Get(ctx, configMap("counter"), resource.ReadOptions{Cached: true})
		if err != nil {
			return err
		}
		if err := up(current); err != nil {
			return err
		}
		_, err = r.Update(ctx, target, change.Replacement{Object: current}, registry.WriteOptions{})
		if !apierrors.IsConflict(err) {
			return err
		}
	}
}

func up(object runtime.Object) error {
	counter := object.(*corev1.ConfigMap)
	n, err := strconv.Atoi(counter.Data["n"])
	counter.Data = map[string]string{"n": strconv.Itoa(n + 1)}
	return err
}

// seesEach reads events until the counter reaches last.
func seesEach(ctx context.Context, w *registry.Watch, last int) error {
	for expected := 1; expected <= last; {
		events, _, err := w.Next(ctx)
		if err != nil {
			return err
		}
		for _, event := range events {
			var counter corev1.ConfigMap
			if _, _, err := clientscheme.Codecs.UniversalDeserializer().Decode(event.Entry.Stored(), nil, &counter); err != nil {
				return err
			}
			if event.Type != watch.Modified || counter.Data["n"] != strconv.Itoa(expected) {
				return fmt.Errorf("%s %s, want %d", event.Type, counter.Data["n"], expected)
			}
			expected++
		}
	}
	return nil
}

// Of many concurrent creates of a name exactly one succeeds; of many deletes as well.
func TestConcurrentCreation(t *testing.T) {
	const clients = 10
	r, _ := open(t)
	for round := range 5 {
		name := fmt.Sprintf("x%d", round)
		created := outcomes(clients, func() error {
			_, err := clientOf(r).Create(t.Context(), configMap(""),
				&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a"}}, resource.WriteOptions{})
			return err
		})
		if created.ok != 1 || created.refused(apierrors.IsAlreadyExists) != clients-1 {
			t.Errorf("%d created: %v", created.ok, created.errs)
		}
		deleted := outcomes(clients, func() error {
			return clientOf(r).Delete(t.Context(), configMap(name), &metav1.DeleteOptions{})
		})
		if deleted.ok != 1 || deleted.refused(apierrors.IsNotFound) != clients-1 {
			t.Errorf("%d deleted: %v", deleted.ok, deleted.errs)
		}
	}
}

type outcome struct {
	ok   int
	errs []error
}

func (o outcome) refused(as func(error) bool) (count int) {
	for _, err := range o.errs {
		if as(err) {
			count++
		}
	}
	return count
}

// outcomes runs a function many times concurrently.
func outcomes(count int, do func() error) (o outcome) {
	errs := make([]error, count)
	var group sync.WaitGroup
	for i := range errs {
		group.Go(func() { errs[i] = do() })
	}
	group.Wait()
	for _, err := range errs {
		if err == nil {
			o.ok++
		}
	}
	o.errs = errs
	return o
}

// An error of a change is returned unwrapped, and nothing is written.
func TestErrorsOfAChange(t *testing.T) {
	r, _ := open(t)
	create(t, r)
	own := errors.New("not like this")
	_, err := clientOf(r).Update(t.Context(), configMap("counter"),
		func(runtime.Object) error { return own }, resource.WriteOptions{})
	if !errors.Is(err, own) {
		t.Errorf("got %v", err)
	}
}

// The error for an expired continue token has a token that continues at the current revision.
func TestExpiredContinue(t *testing.T) {
	r, target, store := openStore(t)
	start := create(t, r)
	for _, name := range []string{"x", "y"} {
		if _, err := clientOf(r).Create(
			t.Context(), configMap(""), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "a"}},
			resource.WriteOptions{},
		); err != nil {
			t.Fatal(err)
		}
	}
	revision, err := store.Revision(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Compact(t.Context(), revision); err != nil {
		t.Fatal(err)
	}
	token := base64.RawURLEncoding.EncodeToString([]byte(`{"v":"meta.k8s.io/v1","rv":` + start +
		`,"start":"/counter\u0000"}`))
	_, err = r.List(t.Context(), target, registry.ListOptions{Limit: 1, Continue: token})
	var expired apierrors.APIStatus
	if !apierrors.IsResourceExpired(err) || !errors.As(err, &expired) {
		t.Fatalf("got %v", err)
	}
	page, err := r.List(t.Context(), target, registry.ListOptions{Limit: 1, Continue: expired.Status().Continue})
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Entries) != 1 || page.Entries[0].Name() != "x" || page.Continue == "" || *page.Remaining != 1 {
		t.Errorf("got %+v", page)
	}
}
