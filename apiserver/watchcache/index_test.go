package watchcache

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

// nodes is an index of objects whose bytes are the value of the field.
var nodes = &resource.Index{Field: "node", Value: func(stored []byte) (string, error) {
	value, _, _ := strings.Cut(string(stored), ";")
	return value, nil
}}

// TestIndexAgreesWithScan compares the index of the current and of earlier snapshots with a scan of all objects.
func TestIndexAgreesWithScan(t *testing.T) {
	caches := New(nil, Options{})
	c := caches.For("pods", func() (Extract, bool) { return Extract{Index: nodes}, true })
	c.state = ready
	c.fill(nil)
	c.publish()
	c.start.Do(func() {})
	random := rand.New(rand.NewPCG(1, 2))
	var snapshots []*Snapshot
	for revision := int64(1); revision < 400; revision++ {
		event := storage.Event{Path: fmt.Sprintf("pods/n%d/p%d", random.IntN(3), random.IntN(20)), Revision: revision}
		if random.IntN(4) > 0 {
			event.Data = fmt.Appendf(nil, "node-%d;%d", random.IntN(5), revision)
		}
		c.apply([]storage.Event{event}, 0)
		if revision%20 == 0 {
			snapshots = append(snapshots, c.now())
		}
	}
	for _, s := range snapshots {
		for i := range 7 {
			for _, prefix := range []string{"pods/", "pods/n1/", "pods/none/"} {
				compareIndex(t, s, fmt.Sprintf("node-%d", i-1), prefix, prefix)
				compareIndex(t, s, fmt.Sprintf("node-%d", i-1), prefix, "pods/n1/p3")
			}
		}
	}
	if snapshots[0].AscendIndexed("other", "node-1", "pods/", "", func(*Entry) bool { return true }) {
		t.Error("a field without index is served")
	}
}

func compareIndex(t *testing.T, s *Snapshot, value, prefix, from string) {
	t.Helper()
	var want, got []string
	s.Ascend(prefix, from, func(e *Entry) bool {
		if node, _ := nodes.Value(e.Stored()); node == value {
			want = append(want, e.Path())
		}
		return true
	})
	s.AscendIndexed("node", value, prefix, from, func(e *Entry) bool {
		got = append(got, e.Path())
		return true
	})
	if !slices.Equal(got, want) {
		t.Errorf("%s below %s from %s: got %v, want %v", value, prefix, from, got, want)
	}
}
