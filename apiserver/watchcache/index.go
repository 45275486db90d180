package watchcache

import (
	"strings"
	"unique"

	"github.com/google/btree"

	"quorate.dev/apiserver/resource"
)

// index has the entries of a collection in the order of a selectable field and then of their paths, so that the objects
// with one value of the field are found without visiting the others. The methods of a nil index do nothing.
type index struct {
	of   *resource.Index
	tree *btree.BTreeG[indexed]
}

// indexed is an entry with its key.
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

// key returns the key of an entry. An object that cannot be read is not selected by any value, as when it is decoded.
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

func (x *index) clone() *index {
	if x == nil {
		return nil
	}
	return &index{of: x.of, tree: x.tree.Clone()}
}

// AscendIndexed is Ascend of the entries whose selectable field has a value. It visits none and returns false if the
// state has no index by the field.
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
