package jsonpatch

import (
	"bytes"
	"encoding/json"
	"maps"
	"slices"
	"unicode/utf8"
)

// kind is the type of a JSON value as far as it has been parsed.
type kind int

const (
	unsplit kind = iota // not parsed yet, or a scalar, which has no members
	object
	list
)

// node is a JSON value. A nil *node is a null that the document contains.
type node struct {
	text    []byte // valid JSON without surrounding space; nil: a null that is the value of an operation
	kind    kind
	members map[string]*node // members of an object by key
	items   []*node          // elements of a list
}

// work is the remaining work that a patch may cause. Each limit decreases as the patch is applied.
type work struct {
	scanned int // bytes of JSON that may be split into members
	moved   int // elements of lists that may be moved by insertions and removals
	opened  int // objects and lists that may be split into members
}

// maxDepth is the maximum number of nested levels of a document, as in package encoding/json. A patch whose text is
// within the limit can create more levels with move operations, and encoding needs stack for each level. Functions that
// walk a patch, or a patch and a document in parallel, need no limit, because the text of the patch is within it.
const maxDepth = 10_000

// newWork returns the limits for one patch. A patch that exhausts them takes some tenths of a second.
func newWork() *work { return &work{scanned: 256 << 20, moved: 100_000_000, opened: 1_000_000} }

// move subtracts moved elements of a list from the remaining work. It returns an error if not enough is left.
func (w *work) move(elements int) error {
	if w.moved -= elements; w.moved < 0 {
		return ErrTooMuchWork
	}
	return nil
}

// open splits an object or list into its members. It returns false for scalars.
func (n *node) open(w *work) (bool, error) {
	if n.kind != unsplit {
		return true, nil
	}
	if len(n.text) == 0 {
		return false, nil
	}
	switch n.text[0] {
	case 'n': // a copied null counts as an object that cannot be extended
		n.kind = object
	case '{':
		n.kind, n.members = object, map[string]*node{}
	case '[':
		n.kind, n.items = list, []*node{}
	default:
		return false, nil
	}
	w.scanned -= len(n.text)
	if w.opened--; w.scanned < 0 || w.opened < 0 {
		return false, ErrTooMuchWork
	}
	n.split()
	return true, nil
}

// split parses the members of an object or list. Its text must be valid JSON.
func (n *node) split() {
	text := n.text[1:]
	for {
		text = bytes.TrimLeft(text, " \t\r\n,")
		if len(text) == 0 || text[0] == '}' || text[0] == ']' || n.members == nil && n.kind == object {
			return
		}
		var key string
		if n.kind == object {
			end := endOfValue(text)
			key = decodeKey(text[:end])
			text = bytes.TrimLeft(text[end:], " \t\r\n:")
		}
		end := endOfValue(text)
		var member *node
		if value := text[:end]; value[0] != 'n' {
			member = &node{text: value}
		}
		if n.kind == object {
			n.members[key] = member
		} else {
			n.items = append(n.items, member)
		}
		text = text[end:]
	}
}

// endOfValue returns the length of the JSON value at the beginning of a valid text.
func endOfValue(text []byte) int {
	switch text[0] {
	case '"':
		return endOfString(text)
	case '{', '[':
		return endOfContainer(text)
	}
	if end := bytes.IndexAny(text, ",]} \t\r\n"); end >= 0 {
		return end
	}
	return len(text)
}

func endOfContainer(text []byte) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch text[i] {
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		case '"':
			i += endOfString(text[i:]) - 1
		}
	}
	return len(text)
}

func endOfString(text []byte) int {
	for i := 1; ; {
		quote := bytes.IndexByte(text[i:], '"')
		if quote < 0 {
			return len(text)
		}
		escapes := 0
		for escapes < quote && text[i+quote-1-escapes] == '\\' {
			escapes++
		}
		i += quote + 1
		if escapes%2 == 0 {
			return i
		}
	}
}

// decodeKey decodes a valid JSON string.
func decodeKey(text []byte) string {
	if bytes.IndexByte(text, '\\') < 0 && utf8.Valid(text) {
		return string(text[1 : len(text)-1])
	}
	var key string
	_ = json.Unmarshal(text, &key)
	return key
}

// encode returns the JSON of a node. Members of objects that have been split are sorted.
func (n *node) encode() ([]byte, error) {
	text, err := n.append(nil, 0)
	if err != nil {
		return nil, err
	}
	return json.Marshal(json.RawMessage(text))
}

// append appends the JSON of a node. depth is the number of objects and lists that contain the node.
func (n *node) append(to []byte, depth int) (_ []byte, err error) {
	switch {
	case n == nil, n.kind == unsplit && n.text == nil, n.kind == object && n.members == nil:
		return append(to, "null"...), nil
	case n.kind == unsplit:
		return append(to, n.text...), nil
	case depth == maxDepth:
		return nil, ErrTooMuchWork
	case n.kind == list:
		to = append(to, '[')
		for i, item := range n.items {
			if i > 0 {
				to = append(to, ',')
			}
			if to, err = item.append(to, depth+1); err != nil {
				return nil, err
			}
		}
		return append(to, ']'), nil
	}
	to = append(to, '{')
	for i, key := range slices.Sorted(maps.Keys(n.members)) {
		if i > 0 {
			to = append(to, ',')
		}
		encoded, _ := json.Marshal(key) // a string can always be encoded
		to = append(append(to, encoded...), ':')
		if to, err = n.members[key].append(to, depth+1); err != nil {
			return nil, err
		}
	}
	return append(to, '}'), nil
}

// equal reports whether two values are equal. The members of objects may be in any order; scalars must have the same
// text.
func (n *node) equal(other *node, w *work) (bool, error) {
	if n == nil || other == nil {
		return n == other, nil
	}
	opened, err := n.open(w)
	if err != nil {
		return false, err
	}
	if !opened {
		return other.kind == unsplit && bytes.Equal(n.text, other.text), nil
	}
	if opened, err = other.open(w); err != nil || !opened || n.kind != other.kind {
		return false, err
	}
	if n.kind == list {
		return n.equalItems(other, w)
	}
	if len(n.members) != len(other.members) {
		return false, nil
	}
	for key, member := range n.members {
		with, ok := other.members[key]
		if !ok {
			return false, nil
		}
		if equal, err := member.equal(with, w); err != nil || !equal {
			return false, err
		}
	}
	return true, nil
}

func (n *node) equalItems(other *node, w *work) (bool, error) {
	if len(n.items) != len(other.items) {
		return false, nil
	}
	for i, item := range n.items {
		if equal, err := item.equal(other.items[i], w); err != nil || !equal {
			return false, err
		}
	}
	return true, nil
}
