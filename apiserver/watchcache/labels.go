package watchcache

import (
	"slices"
	"strings"
	"sync"
	"unique"

	"k8s.io/apimachinery/pkg/labels"
)

// labelSet is a set of labels shared by all entries with equal labels.
type labelSet struct {
	key     string
	set     labels.Set
	entries int    // number of entries that have acquired the set and not released it
	number  uint32 // spreads sets over the slots of KnownLabels; it need not be unique
}

// labelSets keeps one copy of each distinct set of labels of a collection: most objects have the same labels as
// others.
type labelSets struct {
	mu   sync.Mutex
	sets map[string]*labelSet
	made uint32 // number of the latest set; it may wrap around
}

// acquire returns the shared copy of a set of labels, nil for an empty set. The caller releases it.
func (l *labelSets) acquire(set map[string]string) *labelSet {
	if len(set) == 0 {
		return nil
	}
	key := labelKey(set)
	l.mu.Lock()
	defer l.mu.Unlock()
	shared := l.sets[key]
	if shared == nil {
		shared = &labelSet{key: key, set: make(labels.Set, len(set))}
		for name, value := range set {
			shared.set[unique.Make(name).Value()] = unique.Make(value).Value()
		}
		l.made++
		shared.number = l.made
		l.sets[key] = shared
	}
	shared.entries++
	return shared
}

// release undoes one acquire. The set is forgotten when no entry of the tree uses it; entries in the ring may still
// refer to it, and keep it in memory.
func (l *labelSets) release(shared *labelSet) {
	if shared == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if shared.entries--; shared.entries == 0 {
		delete(l.sets, shared.key)
	}
}

// KnownLabels remembers which sets of labels a selector has selected, so that a scan of many entries with few different
// sets evaluates the selector once for each. It must be used by one goroutine, with one selector. A nil *KnownLabels
// remembers nothing.
type KnownLabels struct {
	// slots has the latest set for each remainder of its number.
	slots [256]struct {
		set      *labelSet
		selected bool
	}
}

// Selects reports whether the selector selects the labels of an entry.
func (k *KnownLabels) Selects(selector labels.Selector, e *Entry) bool {
	if k == nil || e.labels == nil {
		return selector.Matches(e.Labels())
	}
	slot := &k.slots[e.labels.number%uint32(len(k.slots))]
	if slot.set != e.labels {
		slot.set, slot.selected = e.labels, selector.Matches(e.labels.set)
	}
	return slot.selected
}

// labelKey returns a key that is unique to a set of labels: '=' and ',' cannot occur in their names and values.
func labelKey(set map[string]string) string {
	names := make([]string, 0, len(set))
	size := 0
	for name, value := range set {
		names = append(names, name)
		size += len(name) + len(value) + 2
	}
	slices.Sort(names)
	var key strings.Builder
	key.Grow(size)
	for _, name := range names {
		key.WriteString(name)
		key.WriteByte('=')
		key.WriteString(set[name])
		key.WriteByte(',')
	}
	return key.String()
}
