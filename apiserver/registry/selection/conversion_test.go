package selection_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry/selection"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

var errWebhook = errors.New("the webhook is unavailable")

// webhook is the codec of a resource whose objects a conversion webhook converts, except objects of the color "local".
// The stored bytes are the name and the color of an object. The color is the label "color" and the field "spec.color"
// of the object.
type webhook struct {
	resource.Codec
	mu      sync.Mutex
	calls   []int // the number of objects of each call
	failing bool
	// blocked, if it is set, delays calls until it is closed.
	blocked chan struct{}
}

// Remote implements resource.Codec.
func (*webhook) Remote(stored []byte) bool { return !strings.HasSuffix(string(stored), " local") }

// LoadAll implements resource.Codec.
func (c *webhook) LoadAll(_ context.Context, stored [][]byte) ([]runtime.Object, error) {
	if c.blocked != nil {
		<-c.blocked
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, len(stored))
	if c.failing {
		return nil, errWebhook
	}
	var converted []runtime.Object
	for _, bytes := range stored {
		name, color, _ := strings.Cut(string(bytes), " ")
		converted = append(converted, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "example.com/v1", "kind": "Widget", "spec": map[string]any{"color": color},
			"metadata": map[string]any{"name": name, "labels": map[string]any{"color": color}},
		}})
	}
	return converted, nil
}

// fail makes later calls fail or succeed.
func (c *webhook) fail(failing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failing = failing
}

// take returns the sizes of the calls since the last take.
func (c *webhook) take() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.calls
	c.calls = nil
	return taken
}

// widgetWorld has widgets in an etcd, which a webhook converts.
type widgetWorld struct {
	*webhook
	etcd  *clientv3.Client
	match resource.Match
	cache *watchcache.Cache
}

func newWidgetWorld(t *testing.T) *widgetWorld {
	t.Helper()
	etcd := etcdtest.Client(t)
	codec := &webhook{}
	version := &resource.Version{Name: "v1", Codec: codec}
	caches := watchcache.New(storage.New(etcd, "/registry"), watchcache.Options{
		Clock: clock.RealClock{}, Logger: logr.Discard(),
	})
	builtintest.Background(t, func(ctx context.Context) { _ = caches.Run(ctx) })
	cache := caches.For("widgets", func() (watchcache.Extract, bool) {
		return watchcache.Extract{
			Remote: true,
			Labels: func(stored []byte) (map[string]string, error) {
				return map[string]string{"color": strings.Fields(string(stored))[1]}, nil
			},
			Fields: func(stored []byte) (fields.Set, error) {
				words := strings.Fields(string(stored))
				return fields.Set{"metadata.name": words[0], "spec.color": words[1]}, nil
			},
			Converted: func(_ resource.Match, object runtime.Object) (labels.Set, fields.Set, error) {
				o := object.(*unstructured.Unstructured)
				color, _, err := unstructured.NestedString(o.Object, "spec", "color")
				return o.GetLabels(), fields.Set{"metadata.name": o.GetName(), "spec.color": color}, err
			},
		}, true
	})
	return &widgetWorld{webhook: codec, etcd: etcd, cache: cache, match: resource.Match{Version: version,
		Definition: &resource.Definition{
			Source: resource.Custom, Namespaced: true, StoragePath: "widgets", ConvertsRemotely: true,
			Versions: []*resource.Version{version},
		},
	}}
}

func (w *widgetWorld) put(t *testing.T, name, color string) {
	t.Helper()
	if _, err := w.etcd.Put(t.Context(), "/registry/widgets/a/"+name, name+" "+color); err != nil {
		t.Fatal(err)
	}
}

// watch returns a watcher of later changes.
// putObject stores a JSON object with a UID, which no webhook converts.
func (w *widgetWorld) putObject(t *testing.T, name, uid string) {
	t.Helper()
	object := fmt.Sprintf(`{"metadata":{"name":%q,"namespace":"a","uid":%q}} local`, name, uid)
	if _, err := w.etcd.Put(t.Context(), "/registry/widgets/a/"+name, object); err != nil {
		t.Fatal(err)
	}
}

func (w *widgetWorld) watch(t *testing.T) *watchcache.Watcher {
	t.Helper()
	revision := builtintest.Must[*clientv3.GetResponse](t)(w.etcd.Get(t.Context(), "/")).Header.Revision
	return builtintest.Must[*watchcache.Watcher](t)(w.cache.Watch(revision, watchcache.Scope{}))
}

func (w *widgetWorld) latest(t *testing.T) *watchcache.Snapshot {
	t.Helper()
	return builtintest.Must[*watchcache.Snapshot](t)(w.cache.Latest(t.Context()))
}

func (w *widgetWorld) filter(t *testing.T, label, field string) *selection.Filter {
	t.Helper()
	f := &selection.Filter{Target: resource.Target{Match: w.match, Namespace: "a"}}
	f.Label = builtintest.Must[labels.Selector](t)(labels.Parse(label))
	f.Field = builtintest.Must[fields.Selector](t)(fields.ParseSelector(field))
	return f
}

// TestScanConverts lists custom objects that a conversion webhook converts, with selectors on the converted fields. It
// counts the calls of the webhook: a selector by name alone needs no call, a list that reads fields converts the
// objects that are not converted yet in one call, and later lists use the converted objects.
func TestScanConverts(t *testing.T) {
	t.Parallel()
	w := newWidgetWorld(t)
	for name, color := range map[string]string{"w0": "red", "w1": "green", "w2": "red", "w3": "local", "w4": "blue"} {
		w.put(t, name, color)
	}
	snapshot := w.latest(t)
	for _, step := range []struct {
		label, field, from string
		limit              int64
		want               string
		visited            int
		needs              bool // whether the selectors need converted objects
		calls              []int
	}{
		{want: "a/w0 a/w1 a/w2 a/w3 a/w4", visited: 5},
		{field: "metadata.name=w2", want: "a/w2", visited: 1},
		{field: "metadata.name!=w2", want: "a/w0 a/w1 a/w3 a/w4", visited: 5},
		{field: "metadata.name=w2", label: "color=red", want: "a/w2", visited: 1, needs: true, calls: []int{1}},
		{label: "color=red", want: "a/w0 a/w2", visited: 5, needs: true, calls: []int{3}},
		{field: "spec.color=green", want: "a/w1", visited: 5, needs: true},
		{label: "color=local", want: "a/w3", visited: 5, needs: true},
		{label: "color!=red", field: "metadata.name!=w1", want: "a/w3 a/w4", visited: 5, needs: true},
		{label: "color=red", limit: 1, want: "a/w0 +", visited: 5, needs: true},
		{label: "color=red", limit: 2, want: "a/w0 a/w2 +", visited: 5, needs: true},
		{label: "color=blue", limit: 1, want: "a/w4", visited: 5, needs: true},
		{label: "color=red", from: "widgets/a/w1", want: "a/w2", visited: 4, needs: true},
	} {
		f, page := w.filter(t, step.label, step.field), selection.Page{Limit: step.limit}
		err := f.Scan(t.Context(), snapshot, step.from, &page)
		if got := described(page); err != nil || got != step.want || page.Visited != step.visited {
			t.Errorf("%+v: got %q after %d entries, %v", step, got, page.Visited, err)
		}
		if got := w.take(); !slices.Equal(got, step.calls) {
			t.Errorf("%+v: calls with %v objects", step, got)
		}
		if got := f.NeedsConversion(); got != step.needs {
			t.Errorf("%+v: needs conversion: %v", step, got)
		}
	}
}

// TestScanConvertsInChunks lists one page of a large collection. The page converts at most a chunk more than it needs.
func TestScanConvertsInChunks(t *testing.T) {
	t.Parallel()
	w := newWidgetWorld(t)
	const chunk, rest = 500, 3
	for i := range chunk + rest {
		w.put(t, fmt.Sprintf("w%03d", i), []string{"red", "green"}[i%2])
	}
	snapshot := w.latest(t)
	for _, step := range []struct {
		limit int64
		want  int
		more  bool
		calls []int
	}{
		{limit: 1, want: 1, more: true, calls: []int{chunk}},
		{limit: chunk / 2, want: chunk / 2, more: true},
		{want: (chunk + rest + 1) / 2, calls: []int{rest}},
	} {
		page := selection.Page{Limit: step.limit}
		err := w.filter(t, "color=red", "").Scan(t.Context(), snapshot, "", &page)
		if err != nil || len(page.Entries) != step.want || page.More != step.more {
			t.Errorf("%+v: got %d entries, more: %v, %v", step, len(page.Entries), page.More, err)
		}
		if got := w.take(); !slices.Equal(got, step.calls) {
			t.Errorf("%+v: calls with %v objects", step, got)
		}
	}
}

// TestScanFailsWithTheWebhook lists while the webhook is unavailable, and again when it is available.
func TestScanFailsWithTheWebhook(t *testing.T) {
	t.Parallel()
	w := newWidgetWorld(t)
	w.put(t, "w0", "red")
	snapshot := w.latest(t)
	scan := func(label string) (string, error) {
		var page selection.Page
		err := w.filter(t, label, "").Scan(t.Context(), snapshot, "", &page)
		return described(page), err
	}
	w.fail(true)
	if got, err := scan("color=red"); !errors.Is(err, errWebhook) || got != "" {
		t.Errorf("without the webhook: got %q, %v", got, err)
	}
	if got, err := scan(""); err != nil || got != "a/w0" {
		t.Errorf("without the webhook and without selectors: got %q, %v", got, err)
	}
	w.fail(false)
	if got, err := scan("color=red"); err != nil || got != "a/w0" {
		t.Errorf("with the webhook: got %q, %v", got, err)
	}
}

// TestSelectsConvertsOne selects one object without Prepare.
func TestSelectsConvertsOne(t *testing.T) {
	t.Parallel()
	w := newWidgetWorld(t)
	w.put(t, "w0", "red")
	entry, _ := w.latest(t).Get("widgets/a/w0")
	w.fail(true)
	if _, err := w.filter(t, "color=red", "").Selects(t.Context(), entry); !errors.Is(err, errWebhook) {
		t.Errorf("without the webhook: got the error %v", err)
	}
	w.fail(false)
	for _, test := range []struct {
		label, field string
		want         bool
	}{
		{"color=red", "", true},
		{"color=red", "spec.color=red", true},
		{"color=red", "spec.color=blue", false},
		{"color=blue", "spec.color=red", false},
		{"", "spec.color=red,metadata.name=w0", true},
		{"", "spec.color=red,metadata.name=w1", false},
	} {
		if got, err := w.filter(t, test.label, test.field).Selects(t.Context(), entry); err != nil || got != test.want {
			t.Errorf("%+v: got %v, %v", test, got, err)
		}
	}
	for _, target := range []resource.Target{
		{Match: w.match, Name: "w1"}, // another name needs no conversion
	} {
		f := w.filter(t, "color=red", "")
		f.Target = target
		if got, err := f.Selects(t.Context(), entry); err != nil || got {
			t.Errorf("the target %s selects w0: %v, %v", target.Name, got, err)
		}
	}
}

// TestEventsConvert watches by the labels that the webhook returns. The states before and after several changes are
// converted in one call, also for clients without selectors, because their events need the converted objects.
func TestEventsConvert(t *testing.T) {
	t.Parallel()
	w := newWidgetWorld(t)
	w.put(t, "w0", "red")
	w.latest(t)
	watcher := w.watch(t)
	w.put(t, "w1", "red")
	w.put(t, "w0", "blue")
	w.put(t, "w1", "green")
	if _, err := w.etcd.Delete(t.Context(), "/registry/widgets/a/w0"); err != nil {
		t.Fatal(err)
	}
	w.latest(t)
	changes, _, err := watcher.Next(t.Context())
	if err != nil || len(changes) != 4 {
		t.Fatalf("got %d changes, %v, want 4", len(changes), err)
	}
	w.fail(true)
	for _, label := range []string{"", "color=red"} {
		events, err := w.filter(t, label, "").Events(t.Context(), changes)
		if !errors.Is(err, errWebhook) {
			t.Errorf("label %q without the webhook: got %d events, %v", label, len(events), err)
		}
	}
	w.fail(false)
	w.take()
	for _, step := range []struct {
		label, want string
		calls       []int
	}{
		// w0 in red and blue, w1 in red and green
		{"color=red", "ADDED w1, DELETED w0, DELETED w1", []int{4}},
		{"color=blue", "ADDED w0, DELETED w0", nil},
		{"color=yellow", "", nil},
		{"", "ADDED w1, MODIFIED w0, MODIFIED w1, DELETED w0", nil},
	} {
		events, err := w.filter(t, step.label, "").Events(t.Context(), changes)
		var seen []string
		for _, event := range events {
			seen = append(seen, fmt.Sprint(event.Type, " ", event.Entry.Name()))
		}
		if got := strings.Join(seen, ", "); err != nil || got != step.want {
			t.Errorf("label %q: got %q, %v, want %q", step.label, got, err, step.want)
		}
		if got := w.take(); !slices.Equal(got, step.calls) {
			t.Errorf("label %q: calls with %v objects, want %v", step.label, got, step.calls)
		}
	}
}

// TestConversionEndsWithTheContext lists and watches with a webhook that does not respond.
func TestConversionEndsWithTheContext(t *testing.T) {
	t.Parallel()
	w := newWidgetWorld(t)
	w.blocked = make(chan struct{})
	defer close(w.blocked)
	w.latest(t)
	watcher := w.watch(t)
	w.put(t, "w0", "red")
	snapshot := w.latest(t)
	changes, _, err := watcher.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	byLabel, byName := w.filter(t, "color=red", ""), w.filter(t, "", "metadata.name=w0")
	entry, _ := snapshot.Get("widgets/a/w0")
	for name, call := range map[string]func() error{
		"Scan":            func() error { return byLabel.Scan(ctx, snapshot, "", &selection.Page{}) },
		"Prepare":         func() error { return byLabel.Prepare(ctx, []*watchcache.Entry{entry}) },
		"Selects":         func() error { _, err := byLabel.Selects(ctx, entry); return err },
		"Events":          func() error { _, err := byLabel.Events(ctx, changes); return err },
		"Events by names": func() error { _, err := byName.Events(ctx, changes); return err },
	} {
		if err := call(); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: got the error %v", name, err)
		}
	}
	if err := byName.Prepare(ctx, []*watchcache.Entry{entry}); err != nil {
		t.Errorf("Prepare for names, which need no conversion: %v", err)
	}
}
