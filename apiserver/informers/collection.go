package informers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// Source is the part of the registry that informers read from.
type Source interface {
	// Cache returns the watch cache of a resource.
	Cache(resource.Match) *watchcache.Cache
	// Follow is a follow.Func.
	Follow(ctx context.Context, key resource.Key, options follow.Options) error
}

// collection reads the objects of one resource, in one served version, from the watch cache.
type collection struct {
	resource schema.GroupVersionResource
	source   Source
	catalog  *resource.CatalogHolder
	logger   logr.Logger
	failed   func(error)
	// dynamic is set for a resource that may come and go. While it is not served, it has no objects.
	dynamic bool
	// opened is nil until the resource is served. It changes only for custom resources.
	opened atomic.Pointer[open]
}

// open is a collection whose definition and watch cache have been looked up.
type open struct {
	resource.Match
	// catalog is the catalog in which the definition was found.
	catalog *resource.Catalog
	cache   *watchcache.Cache
	memo    *memo
}

// isCurrent reports whether a collection has the definition in the catalog. The definitions of built-in kinds never
// change.
func (o *open) isCurrent(catalog *resource.Catalog) bool {
	return o != nil && (o.Source == resource.BuiltIn || o.catalog == catalog)
}

// errNotServed means that the resource is not served.
var errNotServed = errors.New("the resource is not served")

// open looks up the definition and the watch cache in the current catalog.
func (c *collection) open() (*open, error) {
	catalog, known := c.catalog.Current(), c.opened.Load()
	if known.isCurrent(catalog) {
		return known, nil
	}
	if catalog == nil {
		return nil, errNotServed
	}
	match, ok := catalog.Lookup(c.resource.Group, c.resource.Version, c.resource.Resource)
	if !ok || !slices.Contains(match.Version.Endpoints[""].Verbs, "watch") {
		c.opened.Store(nil)
		return nil, fmt.Errorf("%w: %s", errNotServed, c.resource)
	}
	found := &open{Match: match, catalog: catalog, cache: c.source.Cache(match), memo: &memo{}}
	if known != nil && known.Definition == match.Definition {
		found.memo = known.memo
	}
	if !c.opened.CompareAndSwap(known, found) {
		if other := c.opened.Load(); other.isCurrent(catalog) {
			// All readers must share one memo.
			return other, nil
		}
	}
	return found, nil
}

// loadTimeout bounds reads while the watch cache is loading. Later reads do not block.
const loadTimeout = 10 * time.Second

// snapshot returns the latest snapshot of the watch cache. If the cache has been dropped, because the definition has
// changed, it opens the next cache.
func (c *collection) snapshot() (o *open, snapshot *watchcache.Snapshot, err error) {
	const attempts = 3
	for range attempts {
		if o, err = c.open(); err != nil {
			return nil, nil, err
		}
		if snapshot, err = o.latest(); !errors.Is(err, watchcache.ErrDropped) {
			break
		}
		c.opened.CompareAndSwap(o, nil)
	}
	return o, snapshot, err
}

func (o *open) latest() (*watchcache.Snapshot, error) {
	ctx := context.Background()
	if !o.cache.Loaded() {
		limited, cancel := context.WithTimeout(ctx, loadTimeout)
		defer cancel()
		ctx = limited
	}
	return o.cache.Snapshot(ctx, 0)
}

// absent reports whether an error means that the collection has no objects because it is dynamic and not served.
func (c *collection) absent(err error) bool { return c.dynamic && errors.Is(err, errNotServed) }

// get returns the object with a key, "namespace/name" or "name", or nil if there is none.
func (c *collection) get(key string) (runtime.Object, error) {
	o, snapshot, err := c.snapshot()
	if c.absent(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	entry, ok := snapshot.Get(o.StoragePath + "/" + key)
	if !ok {
		return nil, nil
	}
	return o.decoded(entry)
}

// list returns the objects of a namespace, or all objects for "". It omits objects that cannot be decoded.
func (c *collection) list(namespace string) ([]any, error) {
	var objects []any
	err := c.forEach(namespace, func(o *open, entry *watchcache.Entry) {
		if object := c.readable(o, entry); object != nil {
			objects = append(objects, object)
		}
	})
	return objects, err
}

// keys returns the keys of the objects in a namespace, or all keys for "".
func (c *collection) keys(namespace string) ([]string, error) {
	var keys []string
	err := c.forEach(namespace, func(_ *open, entry *watchcache.Entry) { keys = append(keys, keyOf(entry)) })
	return keys, err
}

// forEach calls visit for each entry of a namespace, or for all entries for "".
func (c *collection) forEach(namespace string, visit func(*open, *watchcache.Entry)) error {
	o, snapshot, err := c.snapshot()
	if c.absent(err) {
		return nil
	}
	if err != nil {
		return err
	}
	prefix := o.StoragePath + "/"
	if namespace != "" {
		if !o.Namespaced {
			return nil
		}
		prefix += namespace + "/"
	}
	snapshot.Ascend(prefix, prefix, func(entry *watchcache.Entry) bool {
		visit(o, entry)
		return true
	})
	return nil
}

func keyOf(entry *watchcache.Entry) string {
	if namespace := entry.Namespace(); namespace != "" {
		return namespace + "/" + entry.Name()
	}
	return entry.Name()
}

// decoded returns the object of an entry. The object is shared and must not be changed.
func (o *open) decoded(entry *watchcache.Entry) (runtime.Object, error) {
	decode := func() (runtime.Object, error) { return o.decode(entry) }
	state := o.memo.at(entry.Path(), entry.Revision(), len(entry.Stored()), decode)
	object, err := state.object()
	if err != nil {
		o.memo.forget(entry.Path(), state)
	}
	return object, err
}

// readable returns the object of an entry, or nil if the entry is nil or cannot be decoded, which it logs.
func (c *collection) readable(o *open, entry *watchcache.Entry) runtime.Object {
	if entry == nil {
		return nil
	}
	object, err := o.decoded(entry)
	if err != nil {
		c.logger.Error(err, "Skipping an object that fails to decode", "key", entry.Path())
		return nil
	}
	return object
}

func (o *open) decode(entry *watchcache.Entry) (runtime.Object, error) {
	ctx := context.Background()
	if o.Version.Codec.Remote(entry.Stored()) {
		return entry.Object(ctx, o.Match)
	}
	object, err := o.LoadExternal(ctx, o.Version, entry.Stored())
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(object)
	if err != nil {
		return nil, err
	}
	accessor.SetResourceVersion(strconv.FormatInt(entry.Revision(), 10))
	return object, nil
}
