package selection_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/registry/selection"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// podWorld is a server whose watch cache holds pods, which are indexed by their node.
type podWorld struct {
	*builtintest.Server
	target resource.Target
	cache  *watchcache.Cache
}

func newPodWorld(t *testing.T) *podWorld {
	t.Helper()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	target := builtintest.Must[resource.Target](t)(s.Registry.Target(podKey("", "")))
	return &podWorld{Server: s, target: target, cache: s.Registry.Cache(target.Match)}
}

func podKey(namespace, name string) resource.Key {
	return resource.Key{GroupResource: schema.GroupResource{Resource: "pods"}, Namespace: namespace, Name: name}
}

// create creates pods, each described as "namespace/name app node". The node may be missing.
func (w *podWorld) create(t *testing.T, pods ...string) {
	t.Helper()
	for _, described := range pods {
		words := strings.Fields(described)
		namespace, name, _ := strings.Cut(words[0], "/")
		pod := builtintest.NewPod(name)
		pod.Namespace, pod.Labels = namespace, map[string]string{"app": words[1]}
		if len(words) > 2 {
			pod.Spec.NodeName = words[2]
		}
		builtintest.Must[runtime.Object](t)(w.Create(t.Context(), podKey(namespace, ""), pod, resource.WriteOptions{}))
	}
}

func (w *podWorld) latest(t *testing.T) *watchcache.Snapshot {
	t.Helper()
	return builtintest.Must[*watchcache.Snapshot](t)(w.cache.Latest(t.Context()))
}

// filter returns the filter of a list of pods. Without a namespace, the list is of all namespaces.
func (w *podWorld) filter(t *testing.T, namespace, label, field string) *selection.Filter {
	t.Helper()
	f := &selection.Filter{Target: w.target}
	f.Target.Namespace = namespace
	f.Label = builtintest.Must[labels.Selector](t)(labels.Parse(label))
	f.Field = builtintest.Must[fields.Selector](t)(fields.ParseSelector(field))
	return f
}

// described returns the entries of a page as "namespace/name ...", and "+" if more entries follow.
func described(page selection.Page) string {
	var words []string
	for _, e := range page.Entries {
		words = append(words, e.Namespace()+"/"+e.Name())
	}
	if page.More {
		words = append(words, "+")
	}
	return strings.Join(words, " ")
}

// TestScan lists pods with selectors, from a path and with a limit. The number of visited entries is the cost of the
// list: names and the node narrow it down.
func TestScan(t *testing.T) {
	t.Parallel()
	w := newPodWorld(t)
	w.create(t, "default/a web n1", "default/b web n2", "default/c db n1", "other/a web n1")
	snapshot := w.latest(t)
	for _, test := range []struct {
		namespace, label, field string
		from                    string
		limit                   int64
		want                    string
		visited                 int
	}{
		{want: "default/a default/b default/c other/a", visited: 4},
		{namespace: "default", want: "default/a default/b default/c", visited: 3},
		{namespace: "none"},
		{label: "app=web", want: "default/a default/b other/a", visited: 4},
		{label: "app!=web", want: "default/c", visited: 4},

		// The index finds the pods of a node.
		{field: "spec.nodeName=n1", want: "default/a default/c other/a", visited: 3},
		{namespace: "default", field: "spec.nodeName=n1", want: "default/a default/c", visited: 2},
		{field: "spec.nodeName=n1", label: "app=web", want: "default/a other/a", visited: 3},
		{field: "spec.nodeName=n1,metadata.namespace=other", want: "other/a", visited: 3},
		{field: "spec.nodeName=n1,status.phase=Pending", want: "default/a default/c other/a", visited: 3},
		{field: "spec.nodeName=n1,status.phase=Running", visited: 3},
		{field: "spec.nodeName=n3"},
		{field: "spec.nodeName!=n1", want: "default/b", visited: 4},

		// A name, with its namespace, finds one pod.
		{namespace: "default", field: "metadata.name=a", want: "default/a", visited: 1},
		{namespace: "default", field: "metadata.name=d"},
		{namespace: "default", field: "metadata.name=a", label: "app=db", visited: 1},
		{namespace: "default", field: "metadata.name=a,spec.nodeName=n2", visited: 1},
		{field: "metadata.name=a,metadata.namespace=other", want: "other/a", visited: 1},
		{namespace: "default", field: "metadata.name=a,metadata.namespace=other", visited: 1},
		{field: "metadata.name=a", want: "default/a other/a", visited: 4},
		{field: "metadata.name!=a", want: "default/b default/c", visited: 4},

		// Other fields are read from each object.
		{field: "status.phase=Pending", want: "default/a default/b default/c other/a", visited: 4},
		{field: "status.phase=Running", visited: 4},

		// A scan visits one entry after the page to find out whether there is a next page.
		{limit: 2, want: "default/a default/b +", visited: 3},
		{limit: 4, want: "default/a default/b default/c other/a", visited: 4},
		{limit: 5, want: "default/a default/b default/c other/a", visited: 4},
		{limit: 2, label: "app=web", want: "default/a default/b +", visited: 3},
		{limit: 1, label: "app=db", want: "default/c +", visited: 4},
		{limit: 2, field: "spec.nodeName=n1", want: "default/a default/c +", visited: 3},
		{limit: 3, field: "spec.nodeName=n1", want: "default/a default/c other/a", visited: 3},

		// A page starts at a path, which need not exist.
		{from: "pods/default/c", want: "default/c other/a", visited: 2},
		{from: "pods/default/bb", want: "default/c other/a", visited: 2},
		{from: "pods/zzz"},
		{from: "pods/default/b", limit: 1, want: "default/b +", visited: 2},
		{from: "pods/default/b", field: "spec.nodeName=n1", want: "default/c other/a", visited: 2},
		{from: "pods/default/a", namespace: "default", field: "metadata.name=a", want: "default/a", visited: 1},
		{from: "pods/default/b", namespace: "default", field: "metadata.name=a"},
	} {
		f := w.filter(t, test.namespace, test.label, test.field)
		page := selection.Page{Limit: test.limit}
		err := f.Scan(t.Context(), snapshot, test.from, &page)
		if got := described(page); err != nil || got != test.want || page.Visited != test.visited {
			t.Errorf("%+v: got %q after %d entries, %v", test, got, page.Visited, err)
		}
	}
}

// TestScanWithoutSelectors scans with nil selectors, which select everything, and with the name of one object.
func TestScanWithoutSelectors(t *testing.T) {
	t.Parallel()
	w := newPodWorld(t)
	w.create(t, "default/a web n1", "default/b web n1", "other/b web n1")
	snapshot := w.latest(t)
	for name, want := range map[string]string{"": "default/a default/b other/b", "b": "default/b other/b", "c": ""} {
		f := &selection.Filter{Target: w.target.Named(name)}
		var page selection.Page
		if err := f.Scan(t.Context(), snapshot, "", &page); err != nil || described(page) != want {
			t.Errorf("name %q: got %q, %v, want %q", name, described(page), err, want)
		}
	}
}

// TestScanEndsWithTheContext scans more entries than are visited between two checks of the context.
func TestScanEndsWithTheContext(t *testing.T) {
	t.Parallel()
	w := newPodWorld(t)
	for i := range 2 * selection.ScanInterval {
		w.create(t, fmt.Sprintf("default/p%d web n1", i))
	}
	snapshot := w.latest(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var page selection.Page
	err := w.filter(t, "", "", "").Scan(ctx, snapshot, "", &page)
	if !errors.Is(err, context.Canceled) || page.Visited != selection.ScanInterval {
		t.Errorf("got the error %v after %d entries, want %d", err, page.Visited, selection.ScanInterval)
	}
}

// TestScanOfUndecodableObjects lists pods, one of which cannot be decoded. A list fails if only a field can decide
// whether the object is selected.
func TestScanOfUndecodableObjects(t *testing.T) {
	t.Parallel()
	w := newPodWorld(t)
	w.create(t, "default/a web n1", "default/z web n1")
	if _, err := w.Etcd.Put(t.Context(), "/registry/pods/default/broken", "no object"); err != nil {
		t.Fatal(err)
	}
	snapshot := w.latest(t)
	for _, test := range []struct {
		label, field, want string
		fails              bool
	}{
		{want: "default/a default/broken default/z"},
		{label: "app=web", want: "default/a default/z"},
		{field: "metadata.name!=a", fails: true},
		{field: "spec.nodeName=n1", want: "default/a default/z"},
		{field: "spec.nodeName=n1,status.phase=Pending", want: "default/a default/z"},
		{field: "spec.nodeName!=n2", fails: true},
		{field: "status.phase=Pending", fails: true},
		{label: "app=web", field: "status.phase=Pending", want: "default/a default/z"},
	} {
		var page selection.Page
		err := w.filter(t, "", test.label, test.field).Scan(t.Context(), snapshot, "", &page)
		if (err != nil) != test.fails || !test.fails && described(page) != test.want {
			t.Errorf("%+v: got %q, %v", test, described(page), err)
		}
	}
}

// TestEvents changes a pod step by step. A client sees ADDED when the pod begins to match its selectors, DELETED when
// the pod ceases to match them, and nothing while it does not match.
func TestEvents(t *testing.T) {
	t.Parallel()
	w := newPodWorld(t)
	change := func(app, node string) func(*testing.T) error {
		return func(t *testing.T) error {
			_, err := w.Update(t.Context(), podKey("default", "x"), func(object runtime.Object) error {
				pod := object.(*core.Pod)
				pod.Labels["app"], pod.Annotations = app, map[string]string{"changed": app + node}
				return nil
			}, resource.WriteOptions{})
			return err
		}
	}
	bind := func(t *testing.T) error {
		_, err := w.Call(t.Context(), resource.Key{
			GroupResource: podKey("", "").GroupResource, Subresource: "binding", Namespace: "default", Name: "x",
		}, &core.Binding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "x"},
			Target:     core.ObjectReference{Kind: "Node", Name: "n1"},
		})
		return err
	}
	remove := func(t *testing.T) error {
		return w.Delete(t.Context(), podKey("default", "x"), metav1.NewDeleteOptions(0))
	}
	clients := []*selection.Filter{
		w.filter(t, "", "", ""),
		w.filter(t, "default", "app=web", ""),
		w.filter(t, "", "", "spec.nodeName=n1"),
		w.filter(t, "default", "", "metadata.name=x"),
		w.filter(t, "other", "", ""),
	}
	watchers := make([]*watchcache.Watcher, len(clients))
	revision := w.Revision(t)
	for i, f := range clients {
		watchers[i] = builtintest.Must[*watchcache.Watcher](t)(w.cache.Watch(revision, f.Scope()))
	}
	for _, step := range []struct {
		name string
		do   func(*testing.T) error
		want string // what the clients above see, in their order
	}{
		{"create", func(t *testing.T) error { w.create(t, "default/x db"); return nil }, "ADDED - - ADDED -"},
		{"change the label to web", change("web", ""), "MODIFIED ADDED - MODIFIED -"},
		{"keep the label", change("web", "again"), "MODIFIED MODIFIED - MODIFIED -"},
		{"bind to the node", bind, "MODIFIED MODIFIED ADDED MODIFIED -"},
		{"change the label to db", change("db", ""), "MODIFIED DELETED MODIFIED MODIFIED -"},
		// A pod that is bound to a node is marked as deleted first, also without a grace period.
		{"delete", remove, "MODIFIED,DELETED - MODIFIED,DELETED MODIFIED,DELETED -"},
	} {
		if err := step.do(t); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		w.latest(t) // includes the change
		var seen []string
		for i, f := range clients {
			seen = append(seen, w.seen(t, f, watchers[i]))
		}
		if got := strings.Join(seen, " "); got != step.want {
			t.Errorf("%s: got %s, want %s", step.name, got, step.want)
		}
	}
}

// seen returns the types of the events that have reached a watcher and that a filter selects, or "-".
func (w *podWorld) seen(t *testing.T, f *selection.Filter, watcher *watchcache.Watcher) string {
	t.Helper()
	watcher.RequestProgress()
	changes, _, err := watcher.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	events, err := f.Events(t.Context(), changes)
	if err != nil {
		t.Fatal(err)
	}
	var types []string
	for _, event := range events {
		types = append(types, string(event.Type))
	}
	if types == nil {
		return "-"
	}
	return strings.Join(types, ",")
}

// TestEventsOfUndecodableObjects watches by labels, which such objects do not have, and by fields. A field selector
// fails, also for the deletion, instead of hiding the event.
func TestEventsOfUndecodableObjects(t *testing.T) {
	t.Parallel()
	w := newPodWorld(t)
	revision := w.Revision(t)
	watcher := builtintest.Must[*watchcache.Watcher](t)(w.cache.Watch(revision, watchcache.Scope{}))
	for _, value := range []string{"no object", "still no object"} {
		if _, err := w.Etcd.Put(t.Context(), "/registry/pods/default/broken", value); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := w.Etcd.Delete(t.Context(), "/registry/pods/default/broken"); err != nil {
		t.Fatal(err)
	}
	w.latest(t)
	changes, _, err := watcher.Next(t.Context())
	if err != nil || len(changes) != 3 {
		t.Fatalf("got %d changes, %v, want 3", len(changes), err)
	}
	for i := range changes {
		events, err := w.filter(t, "", "", "status.phase=Pending").Events(t.Context(), changes[i:i+1])
		if err == nil {
			t.Errorf("%s: got %d events by a field of an object that cannot be decoded", changes[i].Type, len(events))
		}
		events, err = w.filter(t, "", "!app", "").Events(t.Context(), changes[i:i+1])
		if err != nil || len(events) != 1 || string(events[0].Type) != changes[i].Type.String() {
			t.Errorf("%s: got %+v, %v by the lack of a label", changes[i].Type, events, err)
		}
	}
}

// TestOnly has the only object that a selector can select, and the scope of its watch.
func TestOnly(t *testing.T) {
	t.Parallel()
	w := newPodWorld(t)
	for _, test := range []struct {
		namespace, field string
		only             string
		scope            watchcache.Scope
	}{
		{"", "", "", watchcache.Scope{}},
		{"default", "", "", watchcache.Scope{Namespace: "default"}},
		{"", "metadata.name=a", "", watchcache.Scope{}},
		{"default", "metadata.name=a", "pods/default/a", watchcache.Scope{Namespace: "default", Name: "a"}},
		{"default", "metadata.name!=a", "", watchcache.Scope{Namespace: "default"}},
		{"default", "metadata.name=", "", watchcache.Scope{Namespace: "default"}},
		{"", "metadata.name=a,metadata.namespace=b", "pods/b/a", watchcache.Scope{}},
		{"", "metadata.name=a,metadata.namespace=", "", watchcache.Scope{}},
		{"", "metadata.namespace=b", "", watchcache.Scope{}},
		// MatchesSingle of kube-apiserver also ignores the namespace of the selector.
		{"default", "metadata.name=a,metadata.namespace=b", "pods/default/a",
			watchcache.Scope{Namespace: "default", Name: "a"}},
		{"", "spec.nodeName=n", "", watchcache.Scope{Field: "spec.nodeName", Value: "n"}},
		{"default", "spec.nodeName=n", "",
			watchcache.Scope{Namespace: "default", Field: "spec.nodeName", Value: "n"}},
		{"default", "spec.nodeName=n,metadata.name=a", "pods/default/a",
			watchcache.Scope{Namespace: "default", Name: "a"}},
		{"", "spec.nodeName!=n", "", watchcache.Scope{}},
	} {
		f := w.filter(t, test.namespace, "", test.field)
		if only, ok := f.Only(); ok != (test.only != "") || ok && only != test.only {
			t.Errorf("%+v: only %q, %v", test, only, ok)
		}
		if got := f.Scope(); got != test.scope {
			t.Errorf("%+v: got the scope %+v", test, got)
		}
	}
	named := &selection.Filter{Target: w.target.Named("a")}
	if got, want := named.Scope(), (watchcache.Scope{Name: "a"}); got != want {
		t.Errorf("a target with a name has the scope %+v, want %+v", got, want)
	}
	if path, ok := named.Only(); ok {
		t.Errorf("without a field selector, only %s can be selected", path)
	}
}

// TestEverything tells selectors that select all objects from others.
func TestEverything(t *testing.T) {
	t.Parallel()
	byLabel, byField := labels.SelectorFromSet(labels.Set{"a": "b"}), fields.OneTermEqualSelector("metadata.name", "a")
	for name, test := range map[string]struct {
		selection.Selection
		want bool
	}{
		"nil":         {selection.Selection{}, true},
		"empty":       {selection.Selection{Label: labels.Everything(), Field: fields.Everything()}, true},
		"by a label":  {selection.Selection{Label: byLabel}, false},
		"by a field":  {selection.Selection{Label: labels.Everything(), Field: byField}, false},
		"no label":    {selection.Selection{Label: labels.Nothing()}, false},
		"by both":     {selection.Selection{Label: byLabel, Field: byField}, false},
		"empty label": {selection.Selection{Label: labels.SelectorFromSet(nil)}, true},
	} {
		if got := test.Everything(); got != test.want {
			t.Errorf("%s: got %v", name, got)
		}
	}
}
