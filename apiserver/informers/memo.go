package informers

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
)

// memoBytes bounds the stored size of the decoded objects that are cached for each resource. Decoded objects take about
// six times as much memory.
const memoBytes = 1 << 20

// memo caches decoded objects by path and revision in two generations. An object that is read moves to the young
// generation. When the young generation exceeds half of memoBytes, it becomes the old generation and replaces the
// previous one.
//
// Invariant: bytes is the stored size of the young generation and at most memoBytes/2. The old generation exceeds
// memoBytes/2 by at most one entry.
type memo struct {
	// mu is not held while an object is decoded.
	mu         sync.Mutex
	young, old map[string]memoEntry
	bytes      int
}

// memoEntry has the two latest states of an object, because event handlers need the states before and after a change.
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

// without returns the entry without the given state.
func (r memoEntry) without(state *decodedState) memoEntry {
	if r.last == state {
		return memoEntry{last: r.former}
	}
	if r.former == state {
		r.former = nil
	}
	return r
}

// decodedState is one state of an object. The first call of object decodes it; concurrent callers wait for the result.
type decodedState struct {
	revision int64
	bytes    int
	object   func() (runtime.Object, error)
}

// at returns the state of an object at a revision. It caches the state unless a newer state is cached.
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

// forget removes a state that failed to decode, so that the next read decodes the object again. The failure of a
// conversion webhook may be temporary.
func (m *memo) forget(path string, failed *decodedState) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.bytes -= m.young[path].bytes()
	for _, generation := range []map[string]memoEntry{m.young, m.old} {
		known, ok := generation[path]
		if !ok {
			continue
		}
		if known = known.without(failed); known.last == nil {
			delete(generation, path)
		} else {
			generation[path] = known
		}
	}
	m.bytes += m.young[path].bytes()
}
