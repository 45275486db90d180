package registry_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
)

// exactly returns options for the state at exactly a revision.
func exactly(revision int64) registry.ListOptions {
	return registry.ListOptions{ResourceVersion: strconv.FormatInt(revision, 10), Match: metav1.ResourceVersionMatchExact}
}

// list returns a list that must succeed.
func (w *world) list(t *testing.T, options registry.ListOptions) *registry.List {
	t.Helper()
	page, err := w.registry.List(t.Context(), w.target, options)
	if err != nil {
		t.Fatal(err)
	}
	return page
}

// A list at a past revision returns the entries of the cache, not copies from storage.
func TestExactListIsOfTheCache(t *testing.T) {
	w := openWorld(t, etcdtest.Client(t), configMaps())
	w.list(t, registry.ListOptions{}) // fills the cache
	w.put(t, "one")
	past := w.put(t, "two")
	w.put(t, "three")
	present := w.list(t, registry.ListOptions{})
	page := w.list(t, exactly(past))
	if len(page.Entries) != 2 || page.Revision != past {
		t.Fatalf("got %d entries at %d, want 2 at %d", len(page.Entries), page.Revision, past)
	}
	for i, entry := range page.Entries { // one and two come before three and after it
		if name := entry.Name(); entry != present.Entries[2*i] {
			t.Errorf("%s is a copy", name)
		}
	}
}

// A continue token whose revision was compacted has expired, although the cache still has the state.
func TestCompactedContinue(t *testing.T) {
	w := openWorld(t, etcdtest.Client(t), configMaps())
	for _, name := range []string{"a", "b", "c"} {
		w.put(t, name)
	}
	first := w.list(t, registry.ListOptions{Limit: 1})
	last := w.put(t, "d")
	again := registry.ListOptions{Limit: 1, Continue: first.Continue}
	if page := w.list(t, again); len(page.Entries) != 1 || page.Revision != first.Revision {
		t.Errorf("before the compaction: %+v", page)
	}
	if err := w.store.Compact(t.Context(), last); err != nil {
		t.Fatal(err)
	}
	w.caches.Compacted(last)
	for name, options := range map[string]registry.ListOptions{"continued": again, "exact": exactly(first.Revision)} {
		_, err := w.registry.List(t.Context(), w.target, options)
		var status apierrors.APIStatus
		if !apierrors.IsResourceExpired(err) || !errors.As(err, &status) {
			t.Errorf("%s: got %v", name, err)
			continue
		}
		if token := status.Status().Continue; (token != "") != (options.Continue != "") {
			t.Errorf("%s: the token to continue with is %q", name, token)
		}
	}
	if page := w.list(t, exactly(last)); len(page.Entries) != 4 {
		t.Errorf("at the compacted revision: %d entries", len(page.Entries))
	}
}

// leaving is a selector that selects everything and ends a context after some objects.
type leaving struct {
	labels.Selector
	end    func()
	looked *int
}

func (l leaving) Matches(labels.Labels) bool {
	*l.looked++
	l.end()
	return true
}

// A scan stops soon after the context of its request ends.
func TestScansEndWithTheirContext(t *testing.T) {
	const stored = 200
	client := etcdtest.Client(t)
	definition := configMaps()
	data, err := definition.Versions[0].Codec.Store(t.Context(), &corev1.ConfigMap{})
	if err != nil {
		t.Fatal(err)
	}
	past := putMany(t, client, definition, stored, string(data))
	w := openWorld(t, client, definition)
	putMany(t, client, definition, 1, string(data)) // the state before is not in the cache
	scans := map[string]func(context.Context, registry.Selection) error{
		"list": func(ctx context.Context, s registry.Selection) error {
			_, err := w.registry.List(ctx, w.target, registry.ListOptions{Selection: s})
			return err
		},
		"list from storage": func(ctx context.Context, s registry.Selection) error {
			options := exactly(past)
			options.Selection = s
			_, err := w.registry.List(ctx, w.target, options)
			return err
		},
		"watch": func(ctx context.Context, s registry.Selection) error {
			_, err := w.registry.Watch(ctx, w.target, registry.WatchOptions{Selection: s, InitialEvents: true})
			return err
		},
	}
	w.list(t, registry.ListOptions{})
	w.registry.LimitStored(1)
	for name, scan := range scans {
		ctx, cancel := context.WithCancel(t.Context())
		looked := 0
		err := scan(ctx, registry.Selection{Label: leaving{labels.Set{"a": "b"}.AsSelector(), cancel, &looked}})
		if !errors.Is(err, context.Canceled) || looked > 20 {
			t.Errorf("%s: visited %d objects, %v", name, looked, err)
		}
		cancel()
	}
	w.list(t, exactly(past)).Close() // there is room: the one that failed holds nothing
}

// Of two lists from storage the second waits if the memory budget is only sufficient for one.
func TestListsFromStorageWaitForEachOther(t *testing.T) {
	client := etcdtest.Client(t)
	definition := configMaps()
	data, err := definition.Versions[0].Codec.Store(t.Context(), &corev1.ConfigMap{
		Data: map[string]string{"k": fmt.Sprint(make([]int, 1000))},
	})
	if err != nil {
		t.Fatal(err)
	}
	past := putMany(t, client, definition, 50, string(data))
	w := openWorld(t, client, definition)
	w.registry.LimitStored(1)
	putMany(t, client, definition, 1, string(data))
	w.list(t, registry.ListOptions{}) // the cache has what it holds anyway
	first := w.list(t, exactly(past))
	waiting, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := w.registry.List(waiting, w.target, exactly(past)); !apierrors.IsTimeout(err) {
		t.Errorf("while the first is open: %v", err)
	}
	w.list(t, registry.ListOptions{})
	first.Close()
	first.Close() // does no harm
	second := w.list(t, exactly(past))
	second.Close()
	if len(first.Entries) != 50 || len(second.Entries) != 50 {
		t.Errorf("%d and %d entries", len(first.Entries), len(second.Entries))
	}
}
