package watchcache

import (
	"strings"

	"github.com/google/btree"
)

// treeDegree is the degree of the B-trees: nodes have 31 to 63 items, so that they are cheap to copy and the tree is
// shallow.
const treeDegree = 32

// item is an entry with a copy of its path, which comparisons need without following a pointer.
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
	index *index // nil: the collection has no indexed field, or the snapshot was derived
	// The state is the same at all revisions from changed to revision. Invariant: changed <= revision.
	changed, revision int64
}

// isAt reports whether the collection had this state at a revision.
func (s *Snapshot) isAt(revision int64) bool { return s.changed <= revision && revision <= s.revision }

// at returns the same state with another revision, for which isAt must be true.
func (s *Snapshot) at(revision int64) *Snapshot {
	return &Snapshot{tree: s.tree, index: s.index, changed: s.changed, revision: revision}
}

// Revision returns the revision of the state.
func (s *Snapshot) Revision() int64 { return s.revision }

// Get returns the entry under a path. It takes O(log n).
func (s *Snapshot) Get(path string) (*Entry, bool) {
	found, ok := s.tree.Get(item{path: path})
	return found.entry, ok
}

// Ascend calls visit for the entries whose paths begin with prefix and are not less than from, in the order of their
// paths, until visit returns false. prefix is empty or ends with a slash. It takes O(log n + visited). visit may take
// its time, because no lock is held.
func (s *Snapshot) Ascend(prefix, from string, visit func(*Entry) bool) {
	// Comparing entries with the first one after the prefix, and not paths with the prefix, spares reading the paths from
	// memory, which takes most of the time of a scan that selects few entries.
	end := s.after(prefix)
	if end != nil && end.path <= from {
		return
	}
	s.tree.AscendGreaterOrEqual(item{path: max(prefix, from)}, func(i item) bool {
		return i.entry != end && visit(i.entry)
	})
}

// after returns the first entry after those whose paths begin with prefix, or nil if there is none.
func (s *Snapshot) after(prefix string) (first *Entry) {
	last, ok := s.tree.Max()
	if !ok || prefix == "" || strings.HasPrefix(last.path, prefix) {
		return nil
	}
	next := []byte(prefix)
	next[len(next)-1]++ // prefixes end with a slash, so that the byte does not overflow
	s.tree.AscendGreaterOrEqual(item{path: string(next)}, func(i item) bool {
		first = i.entry
		return false
	})
	return first
}

// Count returns the number of entries whose paths begin with prefix. It takes O(1) if all do, else O(n).
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
