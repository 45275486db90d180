package handlers

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// TestBookmarkAfterManyEvents has more events pending at the time of a bookmark than one call of Next returns. The
// bookmark follows all of them, and revisions never decrease.
func TestBookmarkAfterManyEvents(t *testing.T) {
	const count = 700
	store := storage.New(etcdtest.Client(t), "/registry")
	r, target := configMaps(t, store)
	changes, err := r.Watch(t.Context(), target, registry.WatchOptions{InitialEvents: true})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Close()
	stored, err := target.Version.Codec.Store(t.Context(), &corev1.ConfigMap{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range count {
		if _, err := store.Create(t.Context(), fmt.Sprint("configmaps/a/", i), stored, 0); err != nil {
			t.Fatal(err)
		}
	}
	if page, err := r.List(t.Context(), target, registry.ListOptions{}); err != nil || len(page.Entries) != count {
		t.Fatal(page, err)
	}

	answer := httptest.NewRecorder()
	c := &call{
		Handlers: New(Options{Registry: r, Clock: clock.RealClock{}}), w: answer,
		r: httptest.NewRequest(http.MethodGet, "/", nil), target: target,
	}
	s := &stream{
		call: c, format: c.format(), changes: changes, seen: changes.Start, bookmarks: true,
		guard: newWriteGuard(answer, writeTimeout),
	}
	if !s.catchUp(t.Context()) {
		t.Fatal("the stream ended")
	}
	decoder := json.NewDecoder(answer.Body)
	var revision int64
	for i := range count + 1 {
		var event struct {
			Type   watch.EventType
			Object metav1.PartialObjectMetadata
		}
		if err := decoder.Decode(&event); err != nil {
			t.Fatal(err)
		}
		next, err := strconv.ParseInt(event.Object.ResourceVersion, 10, 64)
		if err != nil || next < revision || (event.Type == watch.Bookmark) != (i == count) {
			t.Fatalf("event %d: %s of revision %d after %d, %v", i, event.Type, next, revision, err)
		}
		revision = next
	}
}

// TestWatchEventsDoNotWait delivers events one by one while the clock stands still.
func TestWatchEventsDoNotWait(t *testing.T) {
	store := storage.New(etcdtest.Client(t), "/registry")
	r, target := configMaps(t, store)
	stored, err := target.Version.Codec.Store(t.Context(), &corev1.ConfigMap{})
	if err != nil {
		t.Fatal(err)
	}
	h := New(Options{Registry: r, Clock: clocktesting.NewFakeClock(time.Now()), MinWatchTimeout: time.Hour})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		record := request.Begin(r, time.Now(), testr.New(t))
		c := &call{Handlers: h, w: w, r: r.WithContext(record), record: record, target: target}
		if err := c.watch(record); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	watching, err := http.NewRequestWithContext(ctx, http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := server.Client().Do(watching)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	events := json.NewDecoder(response.Body)
	for i := range 10 {
		revision, err := store.Create(t.Context(), fmt.Sprint("configmaps/a/", i), stored, 0)
		if err != nil {
			t.Fatal(err)
		}
		var event struct{ Object metav1.PartialObjectMetadata }
		if err := events.Decode(&event); err != nil {
			t.Fatalf("event %d: %v", i, err)
		}
		if got := event.Object.ResourceVersion; got != strconv.FormatInt(revision, 10) {
			t.Errorf("event %d is of revision %s, want %d", i, got, revision)
		}
	}
}

// configMaps returns a registry with config maps as its only resource.
func configMaps(t testing.TB, store *storage.Store) (*registry.Registry, resource.Target) {
	t.Helper()
	caches := watchcache.New(store, watchcache.Options{Logger: testr.NewWithInterface(t, testr.Options{})})
	ended := make(chan struct{})
	go func() { _ = caches.Run(t.Context()); close(ended) }()
	t.Cleanup(func() { <-ended })
	kind := corev1.SchemeGroupVersion.WithKind("ConfigMap")
	endpoint := &resource.Endpoint{Kind: kind}
	version := &resource.Version{
		Name: "v1", Kind: kind, Endpoints: map[string]*resource.Endpoint{"": endpoint},
		Codec: codec.NewScheme(clientscheme.Scheme, clientscheme.Codecs, kind, kind.GroupVersion(), kind.GroupVersion()),
	}
	definition := &resource.Definition{
		Plural: "configmaps", Namespaced: true, StoragePath: "configmaps", Versions: []*resource.Version{version},
	}
	publisher := &resource.CatalogHolder{}
	publisher.Publish(resource.NewCatalog(definition))
	r := registry.New(registry.Options{
		Store: store, Caches: caches, Catalog: publisher, Admission: &admission.Chain{}, Clock: clock.RealClock{},
		Logger: testr.NewWithInterface(t, testr.Options{}),
	})
	return r, resource.Target{
		Match: resource.Match{Definition: definition, Version: version}, Endpoint: endpoint, Namespace: "a",
	}
}
