package watchcache

import (
	"context"
	"strings"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/encoding"
	"quorate.dev/apiserver/storage"
)

// Entry is one object at one revision. It is immutable, except for fields, remote and encodings, which are added on
// demand. All methods are safe for concurrent use.
type Entry struct {
	cache    *Cache
	path     string
	stored   []byte
	revision int64
	created  int64 // revision of the object's creation, which distinguishes it from an earlier object under the same path
	labels   *labelSet
	fields   atomic.Pointer[fields.Set]
	// remote is replaced, never changed. It is nil unless a conversion webhook converts objects of the collection.
	remote atomic.Pointer[remoteState]
	encodings
}

// newEntry returns an entry for the tree. It acquires shared labels, which releaseEntry releases, or the caller if the
// entry does not get into the tree.
func (c *Cache) newEntry(path string, data []byte, revision, created int64) *Entry {
	return &Entry{
		cache: c, path: path, stored: data, revision: revision, created: created,
		labels: c.labels.acquire(c.extractLabels(path, data)),
	}
}

func (c *Cache) entryOf(v storage.Value) *Entry {
	return c.newEntry(v.Path, v.Data, v.Revision, v.Created)
}

// deleted returns an entry with the same bytes as e at the revision of the object's deletion.
func (e *Entry) deleted(revision int64) *Entry {
	last := &Entry{
		cache: e.cache, path: e.path, stored: e.stored, revision: revision, created: e.created, labels: e.labels,
	}
	if e.cache.extract.Remote {
		last.remote.Store(&remoteState{origin: e})
	}
	return last
}

// Path returns the object's path: its key in etcd without the store's prefix.
func (e *Entry) Path() string { return e.path }

// Name returns the object's name.
func (e *Entry) Name() string { return e.path[strings.LastIndexByte(e.path, '/')+1:] }

// Namespace returns the object's namespace, empty for cluster-scoped objects.
func (e *Entry) Namespace() string { return namespaceOf(e.path[len(e.cache.prefix):]) }

// namespaceOf returns the namespace of a path relative to its collection: "namespace/name", or "name" without a
// namespace.
func namespaceOf(relative string) string {
	namespace, _, found := strings.Cut(relative, "/")
	if !found {
		return ""
	}
	return namespace
}

// Revision returns the revision of the write that stored the object or, in a Deleted event, of its deletion.
func (e *Entry) Revision() int64 { return e.revision }

// Stored returns the stored bytes. The caller must not change them.
func (e *Entry) Stored() []byte { return e.stored }

// Labels returns the labels of the stored object. The caller must not change them, because entries with equal labels
// share them.
func (e *Entry) Labels() labels.Set {
	if e.labels == nil {
		return nil
	}
	return e.labels.set
}

// Fields returns the selectable fields of the stored object. The first call extracts them; the entry keeps them. It
// must not be called for objects that a conversion webhook converts: Attributes returns theirs.
func (e *Entry) Fields() (fields.Set, error) {
	if known := e.fields.Load(); known != nil {
		return *known, nil
	}
	if e.cache.extract.Fields == nil {
		return nil, nil
	}
	found, err := e.cache.extract.Fields(e.stored)
	if err != nil {
		return nil, err
	}
	e.fields.Store(&found)
	return found, nil
}

// Field returns the value of one selectable field. The value of the indexed field is read from the stored bytes each
// time; any other field makes the entry extract and keep all of them.
func (e *Entry) Field(name string) (string, error) {
	if index := e.cache.extract.Index; index != nil && index.Field == name {
		return index.Value(e.stored)
	}
	set, err := e.Fields()
	return set[name], err
}

// Encoded returns the object in a format. The first caller makes the encoding, and concurrent callers wait for it.
// The caller must not change the result. ctx bounds the wait for a conversion webhook, but not the wait for another
// caller.
func (e *Entry) Encoded(ctx context.Context, format encoding.Format) (codec.Encoding, error) {
	if format.Remote(e.stored) {
		return e.encodedRemotely(ctx, format)
	}
	kept, err := e.encodings.get(e.cache.budget(), format, func() ([]byte, error) {
		item, err := format.Encode(ctx, e.stored, e.revision)
		if err != nil {
			return nil, err
		}
		return format.Trim(item, e.stored, e.revision), nil
	})
	if err != nil {
		return codec.Encoding{}, err
	}
	return format.Assemble(kept, e.stored, e.revision), nil
}

// Keeps reports whether the cache has the object in a format, or another caller is making that encoding.
func (e *Entry) Keeps(format encoding.Format) bool { return e.encodings.find(format) != nil }
