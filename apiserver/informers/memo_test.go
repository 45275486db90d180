package informers_test

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	api "k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/resource"
)

// TestMemoIsBounded counts how often objects are decoded when they are read repeatedly: once as long as their stored
// bytes fit into a memo, which has two generations of 512 KiB.
func TestMemoIsBounded(t *testing.T) {
	inOrder := func(objects, times int) (reads []int) {
		for range times {
			for i := range objects {
				reads = append(reads, i)
			}
		}
		return reads
	}
	var interleaved []int // object 0 is read before each of 20 other objects
	for i := range 20 {
		interleaved = append(interleaved, 0, i+1)
	}
	for name, test := range map[string]struct {
		size    int // in KiB
		reads   []int
		decoded int64
	}{
		"few objects":                            {100, inOrder(4, 3), 4},
		"an object above half of the bound":      {600, inOrder(1, 3), 3},
		"more objects than fit":                  {100, inOrder(20, 2), 40},
		"an object that is read again and again": {100, interleaved, 21},
	} {
		t.Run(name, func(t *testing.T) {
			w, factory := open(t)
			informer := factory.Core().V1().Secrets()
			lister, synced := informer.Lister(), informer.Informer().HasSynced
			for i := range 21 {
				object := &api.Secret{
					ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: fmt.Sprint(i)},
					Data:       map[string][]byte{"n": make([]byte, test.size<<10)},
				}
				key := resource.Key{GroupResource: secrets, Namespace: "a"}
				if _, err := w.Create(t.Context(), key, object, resource.WriteOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			factory.Start(t.Context().Done())
			await(t, "synced", synced)
			await(t, "all objects exist", func() bool { return len(informer.Informer().GetIndexer().ListKeys()) == 21 })
			before := w.decoded.Load()
			for _, i := range test.reads {
				if _, err := lister.Secrets("a").Get(fmt.Sprint(i)); err != nil {
					t.Fatal(err)
				}
			}
			if decoded := w.decoded.Load() - before; decoded != test.decoded {
				t.Errorf("%d reads decoded %d objects, want %d", len(test.reads), decoded, test.decoded)
			}
		})
	}
}
