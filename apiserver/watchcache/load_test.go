package watchcache

import (
	"fmt"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// BenchmarkLoad loads a collection of 50,000 objects of 2 kB from an etcd over the network, by pages and as a
// stream.
func BenchmarkLoad(b *testing.B) {
	client := etcdtest.Remote(b)
	data := make([]byte, 2000)
	store := storage.New(client, "/registry")
	for i := range 50_000 {
		if _, err := store.Create(b.Context(), fmt.Sprintf("pods/namespace-%d/pod-%d", i%100, i), data, 0); err != nil {
			b.Fatal(err)
		}
	}
	for _, streamed := range []bool{false, true} {
		b.Run(fmt.Sprintf("streamed=%v", streamed), func(b *testing.B) {
			store := storage.New(client, "/registry")
			if streamed {
				store.StreamLists(clock.RealClock{})
			}
			c := New(store, Options{Logger: logr.Discard()}).For("pods", func() (Extract, bool) { return extract(), true })
			b.ReportAllocs()
			for b.Loop() {
				entries, _, err := c.list(b.Context())
				if err != nil || len(entries) != 50_000 {
					b.Fatalf("listed %d objects: %v", len(entries), err)
				}
			}
		})
	}
}
