package registry_test

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
)

// With an etcd that is not known to support progress requests, reads are consistent and do not wait for progress
// notifications.
func TestConsistentReadsWithoutProgress(t *testing.T) {
	client := etcdtest.Remote(t)
	w := openWorld(t, client, configMaps())
	if w.store.SupportsProgress() {
		t.Fatal("progress is supported")
	}
	began := time.Now()
	for i := range 5 {
		name := fmt.Sprint("object-", i)
		revision := w.put(t, name)
		entry, err := w.registry.Get(t.Context(), named(w.target, name), "")
		if err != nil || entry.Revision() != revision {
			t.Fatalf("reading %s: %v, %v", name, entry, err)
		}
		if _, err := client.Put(t.Context(), "elsewhere", name); err != nil { // the watch cache has no event of it
			t.Fatal(err)
		}
		if _, err := w.registry.Get(t.Context(), named(w.target, name), ""); err != nil {
			t.Fatal(err)
		}
		page, err := w.registry.List(t.Context(), w.target, registry.ListOptions{})
		if err != nil || len(page.Entries) != i+1 || page.Revision <= revision {
			t.Fatalf("listing: %+v, %v", page, err)
		}
		page.Close()
		watch, err := w.registry.Watch(t.Context(), w.target, registry.WatchOptions{InitialEvents: true})
		if err != nil || len(watch.Initial) != i+1 || watch.Start <= revision {
			t.Fatalf("watching: %+v, %v", watch, err)
		}
		w.put(t, "another-"+name)
		events, _, err := watch.Next(t.Context())
		if err != nil || len(events) != 1 || events[0].Entry.Name() != "another-"+name {
			t.Errorf("after the initial state: %+v, %v", events, err)
		}
		watch.Close()
		if err := clientOf(w.registry).Delete(t.Context(), configMap("another-"+name),
			&metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took > 15*time.Second { // each of the reads would wait for 3 s
		t.Errorf("the reads took %v", took)
	}
}
