package informers

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// memoBytes bounds the stored size of the decoded objects kept per resource. Decoded objects are about six times as
// large.
const memoBytes = 1 << 20

// memo caches decoded objects by path and revision in two generations. A read object moves to the young generation;
// when that exceeds half of the budget, it becomes the old one and the previous old one is dropped.
//
// Invariant: bytes is the stored size of the young generation, at most memoBytes/2; the old one is not larger.
type memo struct {
	mu         sync.Mutex // not held while decoding
	young, old map[string]memoEntry
	bytes      int // of the young generation
}

// memoEntry are the two latest states of an object: event handlers need the states before and after a change.
type memoEntry struct{ last, former *decodedState }

func (r memoEntry) at(revision int64) *decodedState {
	for _, known := range []*decodedState{r.last, r.former} {
		if known != nil && known.revision == revision {
			return known
		}
	}
	return nil
}

func (r memoEntry) bytes() (sum int) {
	for _, known := range []*decodedState{r.last, r.former} {
		if known != nil {
			sum += known.bytes
		}
	}
	return sum
}

// decodedState is one state of an object. The first caller of object decodes it; concurrent callers wait.
type decodedState struct {
	revision int64
	bytes    int
	object   func() (runtime.Object, error)
}

// at returns the state of an object at a revision. It is cached unless a newer state is.
func (m *memo) at(path string, revision int64, bytes int, decode func() (runtime.Object, error)) *decodedState {
	m.mu.Lock()
	defer m.mu.Unlock()
	known, young := m.young[path]
	if !young {
		known = m.old[path]
	}
	if found := known.at(revision); found != nil {
		if !young {
			m.add(path, known)
		}
		return found
	}
	made := &decodedState{revision: revision, bytes: bytes, object: sync.OnceValues(decode)}
	if bytes <= memoBytes/2 && (known.last == nil || known.last.revision < revision) {
		m.add(path, memoEntry{last: made, former: known.last})
	}
	return made
}

func (m *memo) add(path string, added memoEntry) {
	if m.young == nil {
		m.young = map[string]memoEntry{}
	}
	m.bytes += added.bytes() - m.young[path].bytes()
	m.young[path] = added
	if m.bytes > memoBytes/2 {
		m.young, m.old, m.bytes = nil, m.young, 0
	}
}
