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

// remembered are the last two states of an object: whoever is told of a change wants both.
type remembered struct{ last, former *decoding }

func (r remembered) at(revision int64) *decoding {
	for _, known := range []*decoding{r.last, r.former} {
		if known != nil && known.revision == revision {
			return known
		}
	}
	return nil
}

func (r remembered) bytes() (sum int) {
	for _, known := range []*decoding{r.last, r.former} {
		if known != nil {
			sum += known.bytes
		}
	}
	return sum
}

// decoding is one state of an object, decoded by the first who asks for it.
type decoding struct {
	revision int64
	bytes    int
	object   func() (runtime.Object, error)
}

// at returns the state of an object at a revision. What is not remembered is decoded by decode, and remembered unless
// a newer state is.
func (m *memo) at(path string, revision int64, bytes int, decode func() (runtime.Object, error)) *decoding {
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
	made := &decoding{revision: revision, bytes: bytes, object: sync.OnceValues(decode)}
	if bytes <= memoBytes/2 && (known.last == nil || known.last.revision < revision) {
		m.add(path, remembered{last: made, former: known.last})
	}
	return made
}

func (m *memo) add(path string, added remembered) {
	if m.young == nil {
		m.young = map[string]remembered{}
	}
	m.bytes += added.bytes() - m.young[path].bytes()
	m.young[path] = added
	if m.bytes > memoBytes/2 {
		m.young, m.old, m.bytes = nil, m.young, 0
	}
}
