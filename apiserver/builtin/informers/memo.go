package informers

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// memoBytes bounds what is kept decoded of one resource, in stored bytes; decoded it is some six times that.
const memoBytes = 1 << 20

// memo remembers decoded objects by path and revision, in two generations: what is asked for moves to the young one,
// and when that has its half of the budget it becomes the old one, whose own content is forgotten.
type memo struct {
	mu         sync.Mutex
	young, old map[string]remembered
	bytes      int // of the young generation
}

type remembered struct {
	revision int64
	object   runtime.Object
	bytes    int
}

func (m *memo) get(path string, revision int64) runtime.Object {
	m.mu.Lock()
	defer m.mu.Unlock()
	if found, ok := m.young[path]; ok {
		if found.revision == revision {
			return found.object
		}
		return nil
	}
	found, ok := m.old[path]
	if !ok || found.revision != revision {
		return nil
	}
	m.add(path, found)
	return found.object
}

// put remembers an object, unless a newer state of it is remembered.
func (m *memo) put(path string, revision int64, object runtime.Object, bytes int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if bytes > memoBytes/2 || m.young[path].revision > revision || m.old[path].revision > revision {
		return
	}
	m.add(path, remembered{revision: revision, object: object, bytes: bytes})
}

func (m *memo) add(path string, added remembered) {
	if m.young == nil {
		m.young = map[string]remembered{}
	}
	m.bytes += added.bytes - m.young[path].bytes
	m.young[path] = added
	if m.bytes > memoBytes/2 {
		m.young, m.old, m.bytes = nil, m.young, 0
	}
}
