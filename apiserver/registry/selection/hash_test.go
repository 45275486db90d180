package selection

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/sharding"
)

// FuzzHash compares the hash with upstream's, by which kube-apiserver and clients divide objects into shards.
func FuzzHash(f *testing.F) {
	for _, text := range []string{"", "default", "0b2d9f0c-8a43-4d3e-9a1f-3f2b6f6f2d11", "\xff\x00"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if got, want := fmt.Sprintf("%016x", hash(text)), sharding.HashField(text); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	})
}
