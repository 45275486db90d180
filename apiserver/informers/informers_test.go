package informers_test

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	clientv3 "go.etcd.io/etcd/client/v3"
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
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/informers"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/client"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

var secrets = schema.GroupResource{Resource: "secrets"}

// world is a registry of the built-in kinds on an etcd of its own.
type world struct {
	*client.Client
	Registry  *registry.Registry
	etcd      *clientv3.Client
	publisher *resource.CatalogHolder
	decoded   atomic.Int64  // number of decoded objects
	unfollow  chan struct{} // receives when a call of Follow ends
}

// Follow implements informers.Source.
func (w *world) Follow(ctx context.Context, key resource.Key, options follow.Options) error {
	defer func() { w.unfollow <- struct{}{} }()
	return w.Client.Follow(ctx, key, options)
}

// counting counts decoded objects.
type counting struct {
	resource.Codec
	decoded *atomic.Int64
}

func (c counting) LoadExternal(ctx context.Context, stored []byte) (runtime.Object, error) {
	c.decoded.Add(1)
	return c.Codec.LoadExternal(ctx, stored)
}

// publish serves the built-in kinds.
func (w *world) publish() {
	definitions := builtin.Definitions(builtin.Options{Objects: w, Catalog: w.publisher, Clock: clock.RealClock{}})
	for _, definition := range definitions {
		for _, version := range definition.Versions {
			version.Codec = counting{version.Codec, &w.decoded}
		}
	}
	w.publisher.Publish(resource.NewCatalog(definitions...))
}

// open returns a world and a factory on it.
func open(t *testing.T) (*world, clientinformers.SharedInformerFactory) {
	t.Helper()
	w, factory := openUnserved(t)
	w.publish()
	return w, factory
}

// openUnserved returns a world with an empty catalog.
func openUnserved(t *testing.T) (*world, clientinformers.SharedInformerFactory) {
	t.Helper()
	etcd := etcdtest.Client(t)
	store := storage.New(etcd, "/registry")
	caches := watchcache.New(store, watchcache.Options{Clock: clock.RealClock{}, Logger: testr.New(t)})
	w := &world{etcd: etcd, publisher: &resource.CatalogHolder{}, unfollow: make(chan struct{}, 100)}
	w.Registry = registry.New(registry.Options{
		Store: store, Caches: caches, Catalog: w.publisher, Admission: &admission.Chain{},
		Clock: clock.RealClock{}, Logger: testr.New(t),
	})
	w.Client = client.New(client.Options{Registry: w.Registry, Clock: clock.RealClock{}, Logger: testr.New(t)})
	ended := make(chan struct{})
	go func() { _ = caches.Run(t.Context()); close(ended) }()
	t.Cleanup(func() { <-ended })
	return w, informers.New(informers.Options{Source: w, Catalog: w.publisher, Logger: testr.New(t)})
}

func create(t *testing.T, w *world, namespace, name string) {
	t.Helper()
	secret := &api.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string][]byte{"n": []byte("0")},
	}
	key := resource.Key{GroupResource: secrets, Namespace: namespace}
	if _, err := w.Create(t.Context(), key, secret, resource.WriteOptions{}); err != nil {
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
	await(t, "three objects", func() bool {
		all, err := lister.List(labels.Everything())
		return err == nil && len(all) == 3
	})
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

// recorder records the calls of a handler.
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
	_, err = r.Update(t.Context(),
		resource.Key{GroupResource: secrets, Namespace: "a", Name: "two"},
		func(o runtime.Object) error { o.(*api.Secret).Data["n"] = []byte("1"); return nil }, resource.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	key := resource.Key{GroupResource: secrets, Namespace: "a", Name: "one"}
	if err := r.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
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
	<-r.unfollow // no event reaches the removed handler from here on
	create(t, r, "a", "three")
	await(t, "a fifth event", func() bool {
		return early.has("add one=0 true", "add two=0 false", "update two=0 two=1", "delete one=0", "add three=0 false")
	})
	if !late.has("add one=0 true", "add two=0 false", "update two=0 two=1", "delete one=0") {
		t.Errorf("a removed handler received an event: %q", late.log)
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
	if err := r.Delete(t.Context(),
		resource.Key{GroupResource: secrets, Namespace: "zoo", Name: "ape"}, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, "one key", func() bool { return keys() == "zoo/ant" })
}

// TestObjectThatFailsToDecodeIsSkipped checks that an object that fails to decode does not prevent reads of others.
func TestObjectThatFailsToDecodeIsSkipped(t *testing.T) {
	w, factory := open(t)
	create(t, w, "a", "one")
	create(t, w, "a", "two")
	if _, err := w.etcd.Put(t.Context(), "/registry/secrets/a/three", "k8s\x00nonsense"); err != nil {
		t.Fatal(err)
	}
	informer := factory.Core().V1().Secrets()
	var told recorder
	if _, err := informer.Informer().AddEventHandler(&told); err != nil {
		t.Fatal(err)
	}
	factory.Start(t.Context().Done())
	await(t, "synced", informer.Informer().HasSynced)
	list, err := informer.Lister().List(labels.Everything())
	if err != nil || len(list) != 2 {
		t.Errorf("got %v, %v", list, err)
	}
	if list, err = informer.Lister().Secrets("a").List(labels.Everything()); err != nil || len(list) != 2 {
		t.Errorf("got %v, %v", list, err)
	}
	if one, err := informer.Lister().Secrets("a").Get("three"); err == nil {
		t.Errorf("got %v", one)
	}
	await(t, "two events", func() bool { return told.has("add one=0 true", "add two=0 true") })
}

// TestEachStateIsDecodedOnce checks that the handlers of a change share the decoded states before and after it.
func TestEachStateIsDecodedOnce(t *testing.T) {
	w, factory := open(t)
	create(t, w, "a", "one")
	informer := factory.Core().V1().Secrets().Informer()
	handlers := []*recorder{{}, {}, {}}
	for _, handler := range handlers {
		if _, err := informer.AddEventHandler(handler); err != nil {
			t.Fatal(err)
		}
	}
	factory.Start(t.Context().Done())
	want := []string{"add one=0 true"}
	for n := range 5 {
		for _, handler := range handlers {
			await(t, "an event", func() bool { return handler.has(want...) })
		}
		key := resource.Key{GroupResource: secrets, Namespace: "a", Name: "one"}
		_, err := w.Update(t.Context(), key, func(o runtime.Object) error {
			o.(*api.Secret).Data["n"] = []byte(strconv.Itoa(n + 1))
			return nil
		}, resource.WriteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		want = append(want, fmt.Sprintf("update one=%d one=%d", n, n+1))
	}
	for _, handler := range handlers {
		await(t, "the last event", func() bool { return handler.has(want...) })
	}
	if decoded := w.decoded.Load(); decoded != 6 {
		t.Errorf("six states were decoded %d times", decoded)
	}
}

// TestSyncedCheckerComesWithTheIndexes checks that a checker waits for the indexes, also if it is requested before
// the resource is served.
func TestSyncedCheckerComesWithTheIndexes(t *testing.T) {
	w, factory := openUnserved(t)
	informer := factory.Core().V1().Secrets().Informer()
	checker := informer.HasSyncedChecker()
	proceed := make(chan struct{})
	err := informer.AddIndexers(cache.Indexers{"slow": func(object any) ([]string, error) {
		<-proceed
		return []string{object.(*corev1.Secret).Name}, nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	w.publish()
	create(t, w, "a", "one")
	factory.Start(t.Context().Done())
	await(t, "the cache", func() bool { keys := informer.GetIndexer().ListKeys(); return len(keys) == 1 })
	select {
	case <-checker.Done():
		t.Error("synced without the index")
	default:
	}
	close(proceed)
	<-checker.Done()
	if keys, err := informer.GetIndexer().IndexKeys("slow", "one"); err != nil || len(keys) != 1 {
		t.Errorf("got %v, %v", keys, err)
	}
}

// TestHandlerThatPanics checks that a panic is reported, and that the handler gets no more events.
func TestHandlerThatPanics(t *testing.T) {
	w, _ := open(t)
	failed := make(chan error, 1)
	factory := informers.New(informers.Options{
		Source: w, Catalog: w.publisher, Logger: testr.New(t), Failed: func(err error) { failed <- err },
	})
	var calls atomic.Int64
	_, err := factory.Core().V1().Secrets().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: func(any) {
		calls.Add(1)
		panic("handler")
	}})
	if err != nil {
		t.Fatal(err)
	}
	create(t, w, "a", "one")
	create(t, w, "a", "two")
	factory.Start(t.Context().Done())
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "handler") {
		t.Errorf("got %v", err)
	}
	<-w.unfollow
	if got := calls.Load(); got != 1 {
		t.Errorf("the handler was called %d times", got)
	}
}
