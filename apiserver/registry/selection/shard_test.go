package selection_test

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	upstream "k8s.io/apiserver/pkg/sharding"

	"quorate.dev/apiserver/registry/selection"
	"quorate.dev/apiserver/watchcache"
)

// TestShard splits many objects into shards that cover all hashes. Each object is in exactly one shard, and upstream's
// selector puts the object into the same shard.
func TestShard(t *testing.T) {
	t.Parallel()
	w := newWidgetWorld(t)
	const objects = 64
	for i := range objects {
		w.putObject(t, fmt.Sprintf("w%02d", i), fmt.Sprintf("uid-%d", i))
	}
	snapshot := w.latest(t)
	for _, key := range []string{"uid", "namespace"} {
		splits := [][2]string{
			{"0000000000000000", "4000000000000000"}, {"4000000000000000", "8000000000000000"},
			{"8000000000000000", "10000000000000000"},
		}
		total := 0
		for _, split := range splits {
			text := fmt.Sprintf("shardRange(object.metadata.%s, '0x%s', '0x%s')", key, split[0], split[1])
			total += compareShard(t, w, snapshot, text)
		}
		if total != objects {
			t.Errorf("the shards by %s have %d of %d objects", key, total, objects)
		}
	}
	both := "shardRange(object.metadata.uid, '0x0000000000000000', '0x4000000000000000') || " +
		"shardRange(object.metadata.uid, '0x8000000000000000', '0x10000000000000000')"
	compareShard(t, w, snapshot, both)
}

// compareShard returns the number of objects in a shard.
func compareShard(t *testing.T, w *widgetWorld, snapshot *watchcache.Snapshot, text string) int {
	t.Helper()
	shard, err := selection.ParseShard(text)
	if err != nil {
		t.Fatal(err)
	}
	expected, err := upstream.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if shard.Text != expected.String() {
		t.Errorf("%s: text %q", text, shard.Text)
	}
	f, page := w.filter(t, "", ""), selection.Page{}
	f.Shard = shard
	if f.Everything() {
		t.Errorf("%s selects everything", text)
	}
	if err := f.Scan(t.Context(), snapshot, "", &page); err != nil {
		t.Fatal(err)
	}
	in := map[string]bool{}
	for _, e := range page.Entries {
		in[e.Name()] = true
	}
	for i := range 64 {
		name := fmt.Sprintf("w%02d", i)
		object := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{
			"name": name, "namespace": "a", "uid": fmt.Sprintf("uid-%d", i),
		}}}
		want, err := expected.Matches(object)
		if err != nil || in[name] != want {
			t.Errorf("%s: %s is in the shard: %v, want %v, %v", text, name, in[name], want, err)
		}
	}
	return len(in)
}

// TestInvalidShards checks that the errors are upstream's.
func TestInvalidShards(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"", "x", "shardRange(object.metadata.name, '0x0', '0x1')", "shardRange(object.metadata.uid, '0x0', '0x1')",
		"shardRange(object.metadata.uid, '0x8000000000000000', '0x4000000000000000')",
		strings.Repeat("(", 1000),
	} {
		_, want := upstream.Parse(text)
		if _, err := selection.ParseShard(text); err == nil || err.Error() != want.Error() {
			t.Errorf("%.60q: %v, want %v", text, err, want)
		}
	}
}
