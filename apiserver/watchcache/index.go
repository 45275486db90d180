package watchcache

import (
	"strings"
	"unique"

	"github.com/google/btree"

	"quorate.dev/apiserver/resource"
)

// index sorts the entries of a collection by the value of one selectable field, then by path, so that the objects
// with one value of the field are found without visiting the others. The methods of a nil index do nothing.
type index struct {
	of   *resource.Index
	tree *btree.BTreeG[indexed]
}

// indexed is an entry with its key: the value of the field, and the path.
type indexed struct {
	value string // interned
	item
}

func newIndex(of *resource.Index) *index {
	if of == nil {
		return nil
	}
	return &index{of: of, tree: btree.NewG(treeDegree, func(a, b indexed) bool {
		if a.value != b.value {
			return a.value < b.value
		}
		return a.path < b.path
	})}
}

// key returns the key of an entry. It returns false for an object that cannot be read: no value of the field selects
// it.
func (x *index) key(entry *Entry) (indexed, bool) {
	value, err := x.of.Value(entry.stored)
	if err != nil {
		return indexed{}, false
	}
	return indexed{value: unique.Make(value).Value(), item: item{path: entry.path, entry: entry}}, true
}

// replace removes one entry and adds another of the same path. Either may be nil.
func (x *index) replace(old, added *Entry) {
	if x == nil {
		return
	}
	if old != nil {
		if key, ok := x.key(old); ok {
			x.tree.Delete(key)
		}
	}
	if added != nil {
		if key, ok := x.key(added); ok {
			x.tree.ReplaceOrInsert(key)
		}
	}
}

// clone returns a copy that later changes of x do not affect. It takes O(1).
func (x *index) clone() *index {
	if x == nil {
		return nil
	}
	return &index{of: x.of, tree: x.tree.Clone()}
}

// AscendIndexed visits the entries whose selectable field has a value, in the same way as Ascend. It visits none and
// returns false if the snapshot has no index by the field, for instance because it was derived. It takes O(log n +
// visited).
func (s *Snapshot) AscendIndexed(field, value, prefix, from string, visit func(*Entry) bool) bool {
	if s.index == nil || s.index.of.Field != field {
		return false
	}
	first := indexed{value: value, item: item{path: max(prefix, from)}}
	s.index.tree.AscendGreaterOrEqual(first, func(i indexed) bool {
		return i.value == value && strings.HasPrefix(i.path, prefix) && visit(i.entry)
	})
	return true
}
