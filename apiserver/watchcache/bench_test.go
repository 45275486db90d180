package watchcache

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/watch"

	"quorate.dev/apiserver/storage"
)

// filled returns a ready cache of count objects of size bytes, without a store.
func filled(tb testing.TB, count, size int) *Cache {
	tb.Helper()
	caches := New(&storage.Store{}, Options{})
	c := caches.For("pods", func() (Extract, bool) {
		return Extract{Labels: func(stored []byte) (map[string]string, error) {
			label, _, _ := strings.Cut(string(stored), ";")
			return map[string]string{"app": label, "tier": "backend", "release": "stable"}, nil
		}}, true
	})
	c.state, c.tree = ready, newTree()
	for i := range count {
		data := make([]byte, size)
		copy(data, fmt.Sprintf("app-%d;", i%50))
		entry := c.newEntry(fmt.Sprintf("pods/namespace-%d/application-deployment-%d", i%100, i), data,
			int64(i+1), int64(i+1))
		entry.holders++
		c.tree.ReplaceOrInsert(item{path: entry.path, entry: entry})
	}
	c.changed = int64(count)
	c.ring.floor = c.changed
	c.publish()
	c.start.Do(func() {})
	return c
}

func BenchmarkAscendWithLabels(b *testing.B) {
	c := filled(b, 5000, 10)
	selector, err := labels.Parse("app=app-7,tier in (backend,frontend)")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		found := 0
		c.now().Ascend("pods/", "", func(e *Entry) bool {
			if selector.Matches(e.Labels()) {
				found++
			}
			return true
		})
		if found != 100 {
			b.Fatal(found)
		}
	}
}

// BenchmarkFanOut applies one event, whose frame each watcher takes.
func BenchmarkFanOut(b *testing.B) {
	for _, watching := range []int{50, 5000} {
		b.Run(fmt.Sprint(watching), func(b *testing.B) {
			c := filled(b, 5000, 2000)
			var all []*Watcher
			for range watching {
				w, err := c.Watch(c.changed, Scope{})
				if err != nil {
					b.Fatal(err)
				}
				all = append(all, w)
			}
			fanOut(b, c, all)
		})
	}
}

// BenchmarkFanOutBesideNarrow adds 10,000 watchers of other namespaces to the 50 of BenchmarkFanOut.
func BenchmarkFanOutBesideNarrow(b *testing.B) {
	c := filled(b, 5000, 2000)
	for i := range 10_000 {
		if _, err := c.Watch(c.changed, Scope{Namespace: fmt.Sprint("other-", i)}); err != nil {
			b.Fatal(err)
		}
	}
	var all []*Watcher
	for range 50 {
		w, err := c.Watch(c.changed, Scope{})
		if err != nil {
			b.Fatal(err)
		}
		all = append(all, w)
	}
	fanOut(b, c, all)
}

func fanOut(b *testing.B, c *Cache, all []*Watcher) {
	format := newFormat(nil)
	data := []byte("app-1;" + strings.Repeat("x", 2000))
	for b.Loop() {
		revision := c.changed + 1
		c.caches.apply(storage.Batch{Revision: revision, Events: []storage.Event{
			{Path: "pods/namespace-1/application-deployment-1", Data: data, Revision: revision, Created: 2},
		}})
		for _, w := range all {
			events, err := w.take()
			if err != nil || len(events) != 1 {
				b.Fatal(events, err)
			}
			if _, err := events[0].Encoded(b.Context(), format, watch.Modified); err != nil {
				b.Fatal(err)
			}
		}
	}
}

func BenchmarkLatest(b *testing.B) {
	w := newWorld(b, Options{})
	pods := w.cache("pods")
	w.create("pods/a/1", "x;")
	w.latest(pods)
	b.Run("one", func(b *testing.B) {
		for b.Loop() {
			w.latest(pods)
		}
	})
	b.Run("parallel", func(b *testing.B) {
		b.SetParallelism(50)
		b.RunParallel(func(p *testing.PB) {
			for p.Next() {
				w.latest(pods)
			}
		})
	})
}

// TestEntryOverhead bounds the memory that the cache takes for an object in addition to its stored bytes.
func TestEntryOverhead(t *testing.T) {
	const count, size, most = 20_000, 1024, 400
	before := heap()
	c := filled(t, count, size)
	overhead := (heap()-before)/count - size
	t.Logf("%d bytes per object beside the stored ones", overhead)
	if overhead > most {
		t.Errorf("%d bytes per object beside the stored ones, want at most %d", overhead, most)
	}
	runtime.KeepAlive(c)
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
