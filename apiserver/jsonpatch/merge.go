package jsonpatch

import (
	"encoding/json"

	library "gopkg.in/evanphx/json-patch.v4"
)

// ErrBadMergePatch is the error for a merge patch that is not an object or list.
var ErrBadMergePatch = library.ErrBadJSONPatch

// Merge applies a merge patch to a valid JSON object.
func Merge(document, patch []byte) ([]byte, error) {
	if !json.Valid(patch) {
		return nil, ErrBadMergePatch
	}
	w := newWork()
	root, changes := newRoot(document), newRoot(patch)
	opened, err := changes.open(w)
	if err != nil {
		return nil, err
	}
	if !opened || changes.kind == object && changes.members == nil {
		return nil, ErrBadMergePatch
	}
	merged, err := merge(root, changes, w)
	if err != nil {
		return nil, err
	}
	if changes.kind == list { // the document is replaced, and fails to decode
		if err := changes.prune(w); err != nil {
			return nil, err
		}
	}
	return merged.encode()
}

// newRoot returns the node of a valid text.
func newRoot(text []byte) *node {
	for len(text) > 0 && (text[0] == ' ' || text[0] == '\t' || text[0] == '\r' || text[0] == '\n') {
		text = text[1:]
	}
	return &node{text: text}
}

// merge returns a value with the changes of a merge patch.
func merge(current, patch *node, w *work) (*node, error) {
	if _, err := current.open(w); err != nil {
		return nil, err
	}
	if current.kind != object {
		return patch, patch.prune(w)
	}
	if _, err := patch.open(w); err != nil {
		return nil, err
	}
	if patch.kind != object {
		return patch, nil
	}
	for key, change := range patch.members {
		if change == nil {
			delete(current.members, key)
			continue
		}
		before := current.members[key]
		if before == nil {
			if err := change.prune(w); err != nil {
				return nil, err
			}
			current.members[key] = change
			continue
		}
		after, err := merge(before, change, w)
		if err != nil {
			return nil, err
		}
		current.members[key] = after
	}
	return current, nil
}

// prune removes the members of objects that are null.
func (n *node) prune(w *work) error {
	if n == nil {
		return nil
	}
	if _, err := n.open(w); err != nil {
		return err
	}
	for key, member := range n.members {
		if member == nil {
			delete(n.members, key)
		} else if err := member.prune(w); err != nil {
			return err
		}
	}
	for _, item := range n.items {
		if err := item.prune(w); err != nil {
			return err
		}
	}
	return nil
}
