package watchcache

import (
	"strings"

	"github.com/google/btree"
)

// treeDegree makes nodes of 31 to 63 items: cheap to copy on write, and few levels.
const treeDegree = 32

// item is an entry with its key, which comparisons need without following a pointer.
type item struct {
	path  string
	entry *Entry
}

func less(a, b item) bool { return a.path < b.path }

type tree = btree.BTreeG[item]

func newTree() *tree { return btree.NewG(treeDegree, less) }

// Snapshot is the state of one collection at one revision. It is immutable; reading it takes no lock.
type Snapshot struct {
	tree  *tree
	index *index // nil: none
	// The state is the same at all revisions from changed to revision. Invariant: changed <= revision.
	changed, revision int64
}

// isAt reports whether this is the state at a revision.
func (s *Snapshot) isAt(revision int64) bool { return s.changed <= revision && revision <= s.revision }

// at returns the state as that of another revision, for which isAt must be true.
func (s *Snapshot) at(revision int64) *Snapshot {
	return &Snapshot{tree: s.tree, index: s.index, changed: s.changed, revision: revision}
}

// Revision returns the revision of the state.
func (s *Snapshot) Revision() int64 { return s.revision }

// Get returns the entry under a path.
func (s *Snapshot) Get(path string) (*Entry, bool) {
	found, ok := s.tree.Get(item{path: path})
	return found.entry, ok
}

// Ascend visits, in the order of paths, the entries whose paths begin with prefix and are not before from,
// until visit returns false.
func (s *Snapshot) Ascend(prefix, from string, visit func(*Entry) bool) {
	s.tree.AscendGreaterOrEqual(item{path: max(prefix, from)}, func(i item) bool {
		return strings.HasPrefix(i.path, prefix) && visit(i.entry)
	})
}

// Count returns the number of entries whose paths begin with prefix.
func (s *Snapshot) Count(prefix string) int {
	count := 0
	if first, ok := s.tree.Min(); ok && strings.HasPrefix(first.path, prefix) {
		if last, _ := s.tree.Max(); strings.HasPrefix(last.path, prefix) {
			return s.tree.Len()
		}
	}
	s.Ascend(prefix, "", func(*Entry) bool { count++; return true })
	return count
}
