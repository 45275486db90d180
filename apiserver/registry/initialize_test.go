package registry_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// impatient shortens waits.
type impatient struct{ clock.RealClock }

func (c impatient) NewTimer(time.Duration) clock.Timer { return c.RealClock.NewTimer(time.Millisecond) }

// later is ahead of the time at which the caches were created.
type later struct {
	impatient
	since time.Duration
}

func (c later) Since(time.Time) time.Duration { return c.since }

// initializing returns a registry whose watch caches never become ready.
func initializing(t *testing.T, downtime time.Duration) *world {
	t.Helper()
	definition := configMaps()
	store := storage.New(etcdtest.Client(t), "/registry")
	caches := watchcache.New(store, watchcache.Options{Clock: later{since: downtime}, Logger: testr.New(t)})
	publisher := &resource.CatalogHolder{}
	publisher.Publish(resource.NewCatalog(definition))
	r := registry.New(registry.Options{
		Store: store, Caches: caches, Catalog: publisher, Admission: &admission.Chain{},
		Clock: clock.RealClock{}, Logger: testr.New(t),
	})
	match, _ := publisher.Current().Find(configMapResource)
	target := resource.Target{Match: match, Endpoint: match.Version.Endpoints[""], Namespace: "a"}
	return &world{registry: r, target: target, store: store, caches: caches, publisher: publisher}
}

// TestInitializing compares requests with those that kube-apiserver's CacheDelegator refuses while its cache is not
// ready, and those that it sends to storage.
func TestInitializing(t *testing.T) {
	w := initializing(t, 50*time.Second)
	revision := w.put(t, "one")
	for _, resourceVersion := range []string{"", "0", "1"} {
		entry, err := w.registry.Get(t.Context(), named(w.target, "one"), resourceVersion)
		if err != nil || entry.Revision() != revision {
			t.Errorf("get at %q: %v", resourceVersion, err)
		}
		page, err := w.registry.List(t.Context(), w.target, registry.ListOptions{Limit: 5})
		if err != nil || len(page.Entries) != 1 {
			t.Errorf("list with a limit at %q: %v", resourceVersion, err)
		}
		if page != nil {
			page.Close()
		}
	}
	exact := registry.ListOptions{ResourceVersion: fmt.Sprint(revision), Match: metav1.ResourceVersionMatchExact}
	page, err := w.registry.List(t.Context(), w.target, exact)
	if err != nil || len(page.Entries) != 1 {
		t.Fatalf("list of an exact revision: %v", err)
	}
	page.Close()
	if _, err := w.registry.Get(t.Context(), named(w.target, "one"), "999999"); !apierrors.IsTimeout(err) {
		t.Errorf("get of a future revision: %v", err)
	}
	everything, _ := labels.Parse("a=b")
	refused := map[string]func() error{
		"list": func() error {
			_, err := w.registry.List(t.Context(), w.target, registry.ListOptions{})
			return err
		},
		"list of any state": func() error {
			_, err := w.registry.List(t.Context(), w.target, registry.ListOptions{ResourceVersion: "0"})
			return err
		},
		"list with a limit and a selector": func() error {
			_, err := w.registry.List(t.Context(), w.target, registry.ListOptions{
				Limit: 5, Selection: registry.Selection{Label: everything},
			})
			return err
		},
		"watch": func() error {
			_, err := w.registry.Watch(t.Context(), w.target, registry.WatchOptions{})
			return err
		},
		"watch with initial events": func() error {
			_, err := w.registry.Watch(t.Context(), w.target, registry.WatchOptions{InitialEvents: true, ResourceVersion: "0"})
			return err
		},
	}
	for name, request := range refused {
		err := request()
		var status apierrors.APIStatus
		if !errors.As(err, &status) || status.Status().Code != http.StatusTooManyRequests ||
			status.Status().Message != "storage is (re)initializing" || status.Status().Details.RetryAfterSeconds != 20 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestServerWaitsForInitialization makes the server's own requests wait.
func TestServerWaitsForInitialization(t *testing.T) {
	w := initializing(t, 0)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := clientOf(w.registry).List(ctx, configMap(""), resource.ReadOptions{})
	if !apierrors.IsTimeout(err) {
		t.Errorf("got %v", err)
	}
}
