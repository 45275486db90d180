package handlers

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/storage"
)

// benchObjects is how many config maps the benchmarks list and watch.
const benchObjects = 500

// discard is a response without memory.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}
func (d discard) Flush()                      {}

// benchCalls stores config maps and returns a function that makes calls for them.
func benchCalls(b *testing.B) func(media codec.Media) *call {
	store := storage.New(etcdtest.Client(b), "/registry")
	r, target := configMaps(b, store)
	stored, err := target.Version.Codec.Store(b.Context(), &corev1.ConfigMap{Data: map[string]string{"key": "value"}})
	if err != nil {
		b.Fatal(err)
	}
	for i := range benchObjects {
		if _, err := store.Create(b.Context(), fmt.Sprint("configmaps/a/", i), stored, 0); err != nil {
			b.Fatal(err)
		}
	}
	h := New(Options{Registry: r, Clock: clock.RealClock{}})
	get := httptest.NewRequest(http.MethodGet, "/", nil)
	return func(media codec.Media) *call {
		return &call{Handlers: h, w: discard{http.Header{}}, r: get, target: target, output: output{media: media}}
	}
}

var benchMedia = map[codec.Media]string{codec.JSON: "JSON", codec.Protobuf: "protobuf"}

// BenchmarkList sends a list whose items are encoded already.
func BenchmarkList(b *testing.B) {
	calls := benchCalls(b)
	for _, media := range []codec.Media{codec.JSON, codec.Protobuf} {
		b.Run(benchMedia[media], func(b *testing.B) {
			for b.Loop() {
				c := calls(media)
				page, err := c.Registry.List(b.Context(), c.target, registry.ListOptions{ResourceVersion: "0"})
				if err != nil {
					b.Fatal(err)
				}
				if err := c.sendPage(page); err != nil {
					b.Fatal(err)
				}
				page.Close()
			}
		})
	}
}

// BenchmarkGet sends an object that is encoded already.
func BenchmarkGet(b *testing.B) {
	calls := benchCalls(b)
	for _, media := range []codec.Media{codec.JSON, codec.Protobuf} {
		b.Run(benchMedia[media], func(b *testing.B) {
			for b.Loop() {
				c := calls(media)
				c.target.Name = "1"
				r := httptest.NewRequest(http.MethodGet, "/?resourceVersion=0", nil)
				c.r, c.record = r, request.Begin(r, time.Now(), logr.Discard())
				if err := c.get(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkWatch sends the events of all objects, whose frames are shared from the second watch on.
func BenchmarkWatch(b *testing.B) {
	calls := benchCalls(b)
	for _, media := range []codec.Media{codec.JSON, codec.Protobuf} {
		b.Run(benchMedia[media], func(b *testing.B) {
			for b.Loop() {
				c := calls(media)
				changes, err := c.Registry.Watch(b.Context(), c.target, registry.WatchOptions{ResourceVersion: "1"})
				if err != nil {
					b.Fatal(err)
				}
				benchStream(b, c, changes)
				changes.Close()
			}
		})
	}
}

// BenchmarkWatchList sends all objects as the initial state of a watch.
func BenchmarkWatchList(b *testing.B) {
	calls := benchCalls(b)
	for _, media := range []codec.Media{codec.JSON, codec.Protobuf} {
		b.Run(benchMedia[media], func(b *testing.B) {
			for b.Loop() {
				c := calls(media)
				changes, err := c.Registry.Watch(b.Context(), c.target, registry.WatchOptions{InitialEvents: true})
				if err != nil {
					b.Fatal(err)
				}
				s := newBenchStream(c, changes)
				if !s.sendInitial(false, registry.Selection{}) {
					b.Fatal("the stream ended")
				}
				s.guard.stop()
				changes.Close()
			}
		})
	}
}

func benchStream(b *testing.B, c *call, changes *registry.Watch) {
	s := newBenchStream(c, changes)
	defer s.guard.stop()
	for sent := 0; sent < benchObjects; {
		events, revision, err := changes.Next(b.Context())
		if err != nil || !s.sendEvents(events, revision) {
			b.Fatal("the stream ended", err)
		}
		sent += len(events)
	}
}

func newBenchStream(c *call, changes *registry.Watch) *stream {
	return &stream{
		call: c, format: c.format(), changes: changes, seen: changes.Start, guard: newWriteGuard(c.w, writeTimeout),
	}
}
