package watchcache

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// world is a real etcd, a store in it, and caches of the store.
type world struct {
	testing.TB
	client   *clientv3.Client
	store    *storage.Store
	caches   *Caches
	registry *prometheus.Registry
}

func newWorld(t testing.TB, options Options) *world {
	t.Helper()
	w := newStoppedWorld(t, options)
	w.run()
	return w
}

// fastClock shortens waits and retries while it is fast.
type fastClock struct {
	clock.RealClock
	fast atomic.Bool
}

func (c *fastClock) NewTimer(d time.Duration) clock.Timer {
	if c.fast.Load() {
		d = min(d, 50*time.Millisecond)
	}
	return c.RealClock.NewTimer(d)
}

// newStoppedWorld returns a world whose caches follow the store only after run, or between follow and the call of the
// function that follow returns.
func newStoppedWorld(t testing.TB, options Options) *world {
	t.Helper()
	client := etcdtest.Client(t)
	w := &world{TB: t, client: client, store: storage.New(client, "/registry"), registry: prometheus.NewRegistry()}
	options.Logger = testr.NewWithInterface(quiet{t}, testr.Options{})
	w.caches = New(w.store, options)
	Register(w.registry, w.caches)
	return w
}

// quiet drops log lines after the end of the test.
type quiet struct{ testing.TB }

func (q quiet) Log(args ...any) {
	if q.Context().Err() == nil {
		q.TB.Log(args...)
	}
}

func (w *world) run() {
	ended := make(chan struct{})
	go func() { w.caches.Run(w.Context()); close(ended) }()
	w.Cleanup(func() { <-ended })
}

// follow makes the caches follow the store after a revision until stop is called, which returns the revision reached.
func (w *world) follow(position int64) (stop func() int64) {
	ctx, cancel := context.WithCancel(w.Context())
	reached := make(chan int64, 1)
	go w.caches.requestProgress(ctx)
	go func() {
		end, _ := w.caches.follow(ctx, position)
		reached <- end
	}()
	return func() int64 { cancel(); return <-reached }
}

// The stored objects of the tests are "label=value;node=name": one label named app, and the field spec.nodeName.
func (w *world) cache(path string) *Cache {
	return w.caches.For(path, func() (Extract, bool) { return extract(), true })
}

func extract() Extract {
	return Extract{
		Labels: func(stored []byte) (map[string]string, error) {
			label, _, _ := strings.Cut(string(stored), ";")
			if label == "" {
				return nil, nil
			}
			return map[string]string{"app": label}, nil
		},
		Fields: func(stored []byte) (fields.Set, error) {
			_, node, _ := strings.Cut(string(stored), ";")
			return fields.Set{"spec.nodeName": node}, nil
		},
	}
}

func (w *world) create(path, data string) int64 {
	w.Helper()
	revision, err := w.store.Create(w.Context(), path, []byte(data), 0)
	if err != nil {
		w.Fatal(err)
	}
	return revision
}

func (w *world) current(path string) int64 {
	w.Helper()
	value, err := w.store.Get(w.Context(), path)
	if err != nil {
		w.Fatal(err)
	}
	return value.Revision
}

func (w *world) update(path, data string) int64 {
	w.Helper()
	revision, err := w.store.Update(w.Context(), path, w.current(path), []byte(data), 0)
	if err != nil {
		w.Fatal(err)
	}
	return revision
}

func (w *world) delete(path string) int64 {
	w.Helper()
	revision, err := w.store.Delete(w.Context(), path, w.current(path))
	if err != nil {
		w.Fatal(err)
	}
	return revision
}

func (w *world) latest(c *Cache) *Snapshot {
	w.Helper()
	snapshot, err := c.Latest(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return snapshot
}

func (w *world) watch(c *Cache, after int64, scope Scope) *Watcher {
	w.Helper()
	watcher, err := c.Watch(after, scope)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(watcher.Close)
	return watcher
}

// expect compares the next events, written as "ADDED path@data".
func (w *world) expect(watcher *Watcher, want ...string) []Event {
	w.Helper()
	var events []Event
	var got []string
	ctx, cancel := context.WithTimeout(w.Context(), 20*time.Second)
	defer cancel()
	for len(got) < len(want) {
		batch, _, err := watcher.Next(ctx)
		if err != nil {
			w.Fatalf("got %q, then %v; want %q", got, err, want)
		}
		for _, event := range batch {
			events = append(events, event)
			got = append(got, fmt.Sprintf("%s %s@%s", event.Type, event.Entry.Path(), event.Entry.Stored()))
		}
	}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		w.Errorf("got events %q, want %q", got, want)
	}
	return events
}

// expectNothing checks that a watcher has no events up to the current revision.
func (w *world) expectNothing(c *Cache, watcher *Watcher) {
	w.Helper()
	want := w.latest(c).Revision()
	watcher.RequestProgress()
	events, revision, err := watcher.Next(w.Context())
	if err != nil || len(events) > 0 || revision < want {
		w.Errorf("got %v at %d, %v; want nothing at %d", events, revision, err, want)
	}
}

func (w *world) expectExpired(watcher *Watcher) {
	w.Helper()
	w.expectEnd(watcher, ErrExpired)
}

func (w *world) expectEnd(watcher *Watcher, want error) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), 20*time.Second)
	defer cancel()
	for {
		_, _, err := watcher.Next(ctx)
		if errors.Is(err, want) {
			return
		}
		if err != nil {
			w.Fatalf("got %v, want %v", err, want)
		}
	}
}

// contents returns a snapshot as "path@data", separated by spaces.
func contents(s *Snapshot, prefix string) string {
	var lines []string
	s.Ascend(prefix, "", func(e *Entry) bool {
		lines = append(lines, fmt.Sprintf("%s@%s", e.Path(), e.Stored()))
		return true
	})
	return strings.Join(lines, " ")
}

// textCodec decodes the stored objects of the tests to objects whose name is the stored text.
type textCodec struct {
	resource.Codec
	err error
}

func (c textCodec) Remote([]byte) bool { return false }

func (c textCodec) LoadExternal(_ context.Context, stored []byte) (runtime.Object, error) {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: string(stored)}}, c.err
}

// newFormat returns a format that differs from all others. If err is not nil, encoding fails with it.
func newFormat(err error) encoding.Format {
	return encoding.Format{Resource: resource.Match{
		Definition: &resource.Definition{}, Version: &resource.Version{Codec: textCodec{err: err}},
	}}
}

// metric returns the sum of a metric over its labels.
func (w *world) metric(name string) float64 {
	w.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == name {
				sum += m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return sum
}
