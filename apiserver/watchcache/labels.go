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
	entries int // reference count
}

// labelSets keeps every distinct set of labels of a cache once: most objects have the labels of their siblings.
type labelSets struct {
	mu   sync.Mutex
	sets map[string]*labelSet
}

// acquire returns the shared set equal to the given one. The caller releases it.
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
		l.sets[key] = shared
	}
	shared.entries++
	return shared
}

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

// labelKey returns a unique key of a set of labels, whose names and values cannot contain the separators.
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
