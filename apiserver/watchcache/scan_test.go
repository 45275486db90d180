package watchcache

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/labels"
)

// TestAscendEndsAfterThePrefix compares the visited paths with the sorted paths that begin with the prefix, for
// prefixes before, between and after all paths, and for starts in, before and after them.
func TestAscendEndsAfterThePrefix(t *testing.T) {
	t.Parallel()
	var paths []string
	for _, namespace := range []string{"a", "a-b", "ab", "b", "z\xff"} {
		for i := range 70 {
			paths = append(paths, fmt.Sprintf("pods/%s/%02d", namespace, i))
		}
	}
	slices.Sort(paths)
	s := &Snapshot{tree: newTree()}
	for _, path := range paths {
		s.tree.ReplaceOrInsert(item{path: path, entry: &Entry{path: path}})
	}
	for _, prefix := range []string{
		"", "p", "pods/", "pods/a/", "pods/a", "pods/ab/", "pods/z\xff/", "pods/c/", "a/", "z/",
	} {
		for _, from := range []string{"", "pods/", "pods/a/35", "pods/a-b/00", "pods/b/", "pods/zz"} {
			var got, want []string
			s.Ascend(prefix, from, func(e *Entry) bool { got = append(got, e.path); return true })
			for _, path := range paths {
				if strings.HasPrefix(path, prefix) && path >= from {
					want = append(want, path)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%q from %q: visited %d, want %d", prefix, from, len(got), len(want))
			}
		}
	}
	empty := &Snapshot{tree: newTree()}
	empty.Ascend("pods/", "", func(*Entry) bool { t.Error("an empty snapshot has an entry"); return true })
}

// counting is a selector that counts evaluations.
type counting struct {
	labels.Selector
	evaluated int
}

func (c *counting) Matches(l labels.Labels) bool {
	c.evaluated++
	return c.Selector.Matches(l)
}

// TestKnownLabels evaluates a selector once for each set of labels, also for sets whose numbers share a slot, and each
// time for entries without labels.
func TestKnownLabels(t *testing.T) {
	t.Parallel()
	sets := labelSets{sets: map[string]*labelSet{}}
	selector := &counting{Selector: labels.SelectorFromSet(labels.Set{"shard": "7"})}
	known := &KnownLabels{}
	scan := func(shards int) (selected int) {
		for range 3 {
			for shard := range shards {
				e := &Entry{labels: sets.acquire(map[string]string{"shard": fmt.Sprint(shard)})}
				if known.Selects(selector, e) {
					selected++
				}
			}
		}
		return selected
	}
	if selected := scan(100); selected != 3 || selector.evaluated != 100 {
		t.Errorf("100 sets: selected %d, evaluated %d times", selected, selector.evaluated)
	}
	selector.evaluated = 0
	if selected := scan(1000); selected != 3 || selector.evaluated > 3000 {
		t.Errorf("1,000 sets: selected %d, evaluated %d times", selected, selector.evaluated)
	}
	selector.evaluated = 0
	for range 2 {
		if known.Selects(selector, &Entry{}) {
			t.Error("an entry without labels is selected")
		}
	}
	if selector.evaluated != 2 {
		t.Errorf("without labels: evaluated %d times", selector.evaluated)
	}
}
