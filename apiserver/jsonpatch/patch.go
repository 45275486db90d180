package jsonpatch

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	library "gopkg.in/evanphx/json-patch.v4"
)

// MaxCopied bounds the bytes that the copy operations of a JSON patch add.
const MaxCopied = 3 << 20

var (
	// ErrTooMuchWork means that a patch is too expensive: for example, it inserts thousands of elements into long
	// lists, nests values so deeply that their text is scanned many times, or has a million objects and lists.
	ErrTooMuchWork = errors.New("the patch needs too much work: it has too many or too long lists, too many objects, or " +
		"values that are nested too deep")
	// ErrIncomplete means that an operation lacks its value, or extends a null.
	ErrIncomplete = errors.New("an operation of the JSON patch is incomplete")
)

// Operations are the operations of a JSON patch.
type Operations = library.Patch

// Decode decodes a JSON patch.
func Decode(patch []byte) (Operations, error) { return library.DecodePatch(patch) }

// Apply applies the operations of a JSON patch to a valid JSON object.
func Apply(document []byte, operations Operations) ([]byte, error) {
	a := &application{root: &node{text: document}, work: newWork()}
	if _, err := a.root.open(a.work); err != nil {
		return nil, err
	}
	for _, o := range operations {
		if err := a.apply(operation{o}); err != nil {
			return nil, err
		}
	}
	return a.root.encode()
}

// application is a document to which a JSON patch is applied.
type application struct {
	root   *node // an object or list that has been split
	copied int64 // bytes that copy operations have added
	work   *work
}

// operation is an operation of a JSON patch.
type operation struct{ library.Operation }

// value returns a node with the operation's value, or nil if the operation has no value.
func (o operation) value() *node {
	raw, ok := o.Operation["value"]
	switch {
	case !ok:
		return nil
	case raw == nil:
		return &node{}
	}
	return &node{text: *raw}
}

func (a *application) apply(o operation) error {
	switch kind := o.Kind(); kind {
	case "add":
		return a.add(o)
	case "remove":
		return a.remove(o)
	case "replace":
		return a.replace(o)
	case "move":
		return a.move(o)
	case "test":
		return a.test(o)
	case "copy":
		return a.copy(o)
	default:
		return fmt.Errorf("Unexpected kind: %s", kind) // kube-apiserver's message
	}
}

// find returns the object or list that contains the value at a path, and the last part of the path. The node is nil if
// there is no such object or list.
func (a *application) find(path string) (*node, string, error) {
	parts := strings.Split(path, "/")
	if len(parts) < 2 {
		return nil, "", nil
	}
	at := a.root
	for _, part := range parts[1 : len(parts)-1] {
		next, err := at.get(decodePart(part))
		if err != nil || next == nil {
			return nil, "", nil //nolint:nilerr // the caller reports the path that is missing
		}
		opened, err := next.open(a.work)
		if err != nil || !opened {
			return nil, "", err
		}
		at = next
	}
	return at, decodePart(parts[len(parts)-1]), nil
}

var partDecoder = strings.NewReplacer("~1", "/", "~0", "~")

func decodePart(part string) string { return partDecoder.Replace(part) }

func (a *application) add(o operation) error {
	path, err := o.Path()
	if err != nil {
		return fmt.Errorf("add operation failed to decode path: %w", library.ErrMissing)
	}
	container, key, err := a.find(path)
	if err != nil {
		return err
	}
	if container == nil {
		return fmt.Errorf("add operation does not apply: doc is missing path: \"%s\": %w", path, library.ErrMissing)
	}
	if err := container.add(key, o.value(), a.work); err != nil {
		return fmt.Errorf("error in add for path: '%s': %w", path, err)
	}
	return nil
}

func (a *application) remove(o operation) error {
	path, err := o.Path()
	if err != nil {
		return fmt.Errorf("remove operation failed to decode path: %w", library.ErrMissing)
	}
	container, key, err := a.find(path)
	if err != nil {
		return err
	}
	if container == nil {
		return fmt.Errorf("remove operation does not apply: doc is missing path: \"%s\": %w", path, library.ErrMissing)
	}
	if err := container.remove(key, a.work); err != nil {
		return fmt.Errorf("error in remove for path: '%s': %w", path, err)
	}
	return nil
}

func (a *application) replace(o operation) error {
	path, err := o.Path()
	if err != nil {
		return fmt.Errorf("replace operation failed to decode path: %w", err)
	}
	if path == "" {
		return a.replaceRoot(o.value())
	}
	container, key, err := a.find(path)
	if err != nil {
		return err
	}
	if container == nil {
		return fmt.Errorf("replace operation does not apply: doc is missing path: %s: %w", path, library.ErrMissing)
	}
	if _, err := container.get(key); err != nil {
		return fmt.Errorf("replace operation does not apply: doc is missing key: %s: %w", path, library.ErrMissing)
	}
	if err := container.set(key, o.value()); err != nil {
		return fmt.Errorf("error in remove for path: '%s': %w", path, err)
	}
	return nil
}

func (a *application) replaceRoot(value *node) error {
	if value == nil {
		return ErrIncomplete
	}
	opened, err := value.open(a.work)
	if err == nil && !opened {
		err = errors.New("replace operation value must be object or array: %!w(<nil>)")
	}
	if err == nil {
		a.root = value
	}
	return err
}

func (a *application) move(o operation) error {
	from, err := o.From()
	if err != nil {
		return fmt.Errorf("move operation failed to decode from: %w", err)
	}
	container, key, err := a.find(from)
	if err != nil {
		return err
	}
	if container == nil {
		return fmt.Errorf("move operation does not apply: doc is missing from path: %s: %w", from, library.ErrMissing)
	}
	value, err := container.get(key)
	if err == nil {
		err = container.remove(key, a.work)
	}
	if err != nil {
		return fmt.Errorf("error in move for path: '%s': %w", key, err)
	}
	path, err := o.Path()
	if err != nil {
		return fmt.Errorf("move operation failed to decode path: %w", err)
	}
	if container, key, err = a.find(path); err != nil {
		return err
	}
	if container == nil {
		return fmt.Errorf("move operation does not apply: doc is missing destination path: %s: %w", path, library.ErrMissing)
	}
	if err := container.add(key, value, a.work); err != nil {
		return fmt.Errorf("error in move for path: '%s': %w", path, err)
	}
	return nil
}

func (a *application) test(o operation) error {
	path, err := o.Path()
	if err != nil {
		return fmt.Errorf("test operation failed to decode path: %w", err)
	}
	value := o.value()
	if path == "" {
		if value == nil {
			return ErrIncomplete
		}
		return a.compare(path, a.root, value)
	}
	container, key, err := a.find(path)
	if err != nil {
		return err
	}
	if container == nil {
		return fmt.Errorf("test operation does not apply: is missing path: %s: %w", path, library.ErrMissing)
	}
	found, err := container.get(key)
	if err != nil {
		return fmt.Errorf("error in test for path: '%s': %w", path, err)
	}
	if found == nil && value != nil && value.text == nil { // null, which a missing member of an object equals
		return nil
	}
	return a.compare(path, found, value)
}

// compare returns an error if the value at a path differs from the expected one.
func (a *application) compare(path string, found, expected *node) error {
	equal, err := found.equal(expected, a.work)
	if err == nil && !equal {
		err = fmt.Errorf("testing value %s failed: %w", path, library.ErrTestFailed)
	}
	return err
}

func (a *application) copy(o operation) error {
	from, err := o.From()
	if err != nil {
		return fmt.Errorf("copy operation failed to decode from: %w", err)
	}
	container, key, err := a.find(from)
	if err != nil {
		return err
	}
	if container == nil {
		return fmt.Errorf("copy operation does not apply: doc is missing from path: %s: %w", from, library.ErrMissing)
	}
	value, err := container.get(key)
	if err != nil {
		return fmt.Errorf("error in copy for from: '%s': %w", from, err)
	}
	path, err := o.Path()
	if err != nil {
		return fmt.Errorf("copy operation failed to decode path: %w", library.ErrMissing)
	}
	if container, key, err = a.find(path); err != nil {
		return err
	}
	if container == nil {
		return fmt.Errorf("copy operation does not apply: doc is missing destination path: %s: %w", path, library.ErrMissing)
	}
	copied, err := a.clone(value)
	if err != nil {
		return err
	}
	if err := container.add(key, copied, a.work); err != nil {
		return fmt.Errorf("error while adding value during copy: %w", err)
	}
	return nil
}

// clone returns a copy of a value, and an error if copies have become too large.
func (a *application) clone(value *node) (*node, error) {
	if value == nil {
		return nil, nil
	}
	text, err := value.encode()
	if err != nil {
		return nil, fmt.Errorf("error while performing deep copy: %w", err)
	}
	if a.copied += int64(len(text)); a.copied > MaxCopied {
		return nil, library.NewAccumulatedCopySizeError(MaxCopied, a.copied)
	}
	return &node{text: text}, nil
}

// get returns a member of an object, or nil if it does not exist, or an element of a list.
func (n *node) get(key string) (*node, error) {
	if n.kind == object {
		return n.members[key], nil
	}
	index, err := strconv.Atoi(key)
	if err != nil {
		return nil, err
	}
	if index, err = n.index(index, len(n.items)-1); err != nil {
		return nil, err
	}
	return n.items[index], nil
}

// set replaces a member that get returns.
func (n *node) set(key string, value *node) error {
	if n.kind == object {
		return n.setMember(key, value)
	}
	index, err := strconv.Atoi(key)
	if err != nil {
		return err
	}
	if index, err = n.index(index, len(n.items)-1); err != nil {
		return err
	}
	n.items[index] = value
	return nil
}

func (n *node) setMember(key string, value *node) error {
	if n.members == nil {
		return ErrIncomplete
	}
	n.members[key] = value
	return nil
}

// add sets the member of an object, or inserts an element into a list.
func (n *node) add(key string, value *node, w *work) error {
	if n.kind == object {
		return n.setMember(key, value)
	}
	if key == "-" {
		n.items = append(n.items, value)
		return nil
	}
	index, err := strconv.Atoi(key)
	if err != nil {
		return fmt.Errorf("value was not a proper array index: '%s': %w", key, err)
	}
	if index, err = n.index(index, len(n.items)); err != nil {
		return err
	}
	if err := w.move(len(n.items) - index); err != nil {
		return err
	}
	n.items = slices.Insert(n.items, index, value)
	return nil
}

// remove removes the member of an object or the element of a list.
func (n *node) remove(key string, w *work) error {
	if n.kind == object {
		if _, ok := n.members[key]; !ok {
			// kube-apiserver responds with this text.
			return fmt.Errorf("Unable to remove nonexistent key: %s: %w", key, library.ErrMissing)
		}
		delete(n.members, key)
		return nil
	}
	index, err := strconv.Atoi(key)
	if err != nil {
		return err
	}
	if index, err = n.index(index, len(n.items)-1); err != nil {
		return err
	}
	if err := w.move(len(n.items) - index); err != nil {
		return err
	}
	n.items = slices.Delete(n.items, index, index+1)
	return nil
}

// index returns the index of an element, at most last. Negative indexes count from the end: -1 is last.
func (n *node) index(index, last int) (int, error) {
	if index > last || index < -last-1 {
		// kube-apiserver responds with this text.
		return 0, fmt.Errorf("Unable to access invalid index: %d: %w", index, library.ErrInvalidIndex)
	}
	if index < 0 {
		index += last + 1
	}
	return index, nil
}
