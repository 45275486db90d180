package informers_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/informers"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/etcd"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

var secrets = schema.GroupResource{Resource: "secrets"}

// open returns a registry of the built-in kinds on an etcd of its own, and a factory on it that has been started.
func open(t *testing.T) (*registry.Registry, clientinformers.SharedInformerFactory) {
	t.Helper()
	member := config.Default().Member
	member.DataDirectory = t.TempDir()
	member.ListenPeerURLs = []string{"http://127.0.0.1:0"}
	member.UnsafeNoFsync = true
	m, err := etcd.Start(t.Context(), member)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Stop(context.Background()) })
	<-m.Ready()
	ctx, stop := context.WithCancel(context.Background())
	t.Cleanup(stop)
	store := storage.New(m.Client(), "/registry")
	caches := watchcache.New(store, watchcache.Options{Clock: clock.RealClock{}, Logger: testr.New(t)})
	publisher := &resource.Publisher{}
	r := registry.New(registry.Options{
		Store: store, Caches: caches, Catalog: publisher, Admission: &admission.Chain{}, Clock: clock.RealClock{}, Logger: testr.New(t),
	})
	factory := informers.New(informers.Options{Source: r, Catalog: publisher, Logger: testr.New(t)})
	publisher.Publish(resource.NewCatalog(builtin.Definitions(builtin.Options{Objects: r, Catalog: publisher, Clock: clock.RealClock{}})...))
	go func() { _ = caches.Run(ctx) }()
	return r, factory
}

func create(t *testing.T, r *registry.Registry, namespace, name string) {
	t.Helper()
	secret := &api.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{"n": []byte("0")}}
	if _, err := r.Create(t.Context(), secrets, namespace, secret, false); err != nil {
		t.Fatal(err)
	}
}

func await(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	for !condition() {
		select {
		case <-deadline:
			t.Fatal("never: " + what)
		case <-time.After(time.Millisecond):
		}
	}
}

func TestListerReadsTheCache(t *testing.T) {
	r, factory := open(t)
	informer := factory.Core().V1().Secrets()
	lister := informer.Lister()
	create(t, r, "a", "one")
	create(t, r, "a", "two")
	create(t, r, "b", "one")
	factory.Start(t.Context().Done())
	await(t, "synced", informer.Informer().HasSynced)
	await(t, "three objects", func() bool { all, err := lister.List(labels.Everything()); return err == nil && len(all) == 3 })
	list, err := lister.Secrets("a").List(labels.Everything())
	if err != nil || len(list) != 2 {
		t.Fatalf("got %v, %v", list, err)
	}
	one, err := lister.Secrets("a").Get("one")
	if err != nil || one.Name != "one" || one.ResourceVersion == "" || one.Type != corev1.SecretTypeOpaque {
		t.Fatalf("got %v, %v", one, err)
	}
	if again, _ := lister.Secrets("a").Get("one"); again != one {
		t.Error("an object that did not change was decoded again")
	}
	if missing, err := lister.Secrets("a").Get("three"); err == nil {
		t.Errorf("got %v", missing)
	}
	if none, err := lister.Secrets("c").List(labels.Everything()); err != nil || len(none) != 0 {
		t.Errorf("got %v, %v", none, err)
	}
}

// recorder writes down what a handler is told.
type recorder struct {
	mu  sync.Mutex
	log []string
}

func (r *recorder) note(format string, arguments ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.log = append(r.log, fmt.Sprintf(format, arguments...))
}

func (r *recorder) has(log ...string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Equal(r.log, log)
}

func (r *recorder) OnAdd(object any, initial bool) { r.note("add %s %v", describe(object), initial) }
func (r *recorder) OnUpdate(before, after any) {
	r.note("update %s %s", describe(before), describe(after))
}
func (r *recorder) OnDelete(object any) { r.note("delete %s", describe(object)) }

func describe(object any) string {
	secret := object.(*corev1.Secret)
	return secret.Name + "=" + string(secret.Data["n"])
}

func TestHandlersGetEveryEventInOrder(t *testing.T) {
	r, factory := open(t)
	informer := factory.Core().V1().Secrets().Informer()
	create(t, r, "a", "one")
	var early recorder
	registration, err := informer.AddEventHandler(&early)
	if err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	await(t, "handler synced", registration.HasSynced)
	if !early.has("add one=0 true") {
		t.Fatalf("got %q", early.log)
	}
	var late recorder
	second, err := informer.AddEventHandler(&late)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "late handler synced", second.HasSynced)
	create(t, r, "a", "two")
	_, err = r.Update(t.Context(), secrets, "", "a", "two", func(o runtime.Object) error { o.(*api.Secret).Data["n"] = []byte("1"); return nil }, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Delete(t.Context(), secrets, "a", "one", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, recorder := range []*recorder{&early, &late} {
		await(t, "four events", func() bool {
			return recorder.has("add one=0 true", "add two=0 false", "update two=0 two=1", "delete one=0")
		})
	}
	if err := informer.RemoveEventHandler(second); err != nil {
		t.Fatal(err)
	}
	create(t, r, "a", "three")
	await(t, "a fifth event", func() bool {
		return early.has("add one=0 true", "add two=0 false", "update two=0 two=1", "delete one=0", "add three=0 false")
	})
	if len(late.log) != 4 {
		t.Errorf("a removed handler was told of an event: %q", late.log)
	}
}

func TestIndex(t *testing.T) {
	r, factory := open(t)
	informer := factory.Core().V1().Secrets().Informer()
	err := informer.AddIndexers(cache.Indexers{"first letter": func(object any) ([]string, error) {
		accessor, err := meta.Accessor(object)
		return []string{accessor.GetName()[:1]}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"ape", "ant", "bee"} {
		create(t, r, "zoo", name)
	}
	factory.Start(t.Context().Done())
	await(t, "synced", informer.HasSynced)
	keys := func() string {
		keys, err := informer.GetIndexer().IndexKeys("first letter", "a")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Join(keys, " ")
	}
	await(t, "two keys", func() bool { return keys() == "zoo/ant zoo/ape" })
	if objects, err := informer.GetIndexer().ByIndex("first letter", "b"); err != nil || len(objects) != 1 {
		t.Errorf("got %v, %v", objects, err)
	}
	if err := r.Delete(t.Context(), secrets, "zoo", "ape", &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "one key", func() bool { return keys() == "zoo/ant" })
}
