package informers

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// Source is the part of the registry that informers are made of.
type Source interface {
	// Cache returns the cache of a resource.
	Cache(resource.Match) *watchcache.Cache
	// FollowEntries calls handle with every entry, present and future, until ctx ends; before is what it was told
	// last, after is nil when the object was deleted. synced is called once, after all that were there at the start.
	FollowEntries(ctx context.Context, name schema.GroupResource, handle func(before, after *watchcache.Entry), synced func()) error
}

// collection reads one resource as the watch cache has it, in one served version.
type collection struct {
	resource schema.GroupVersionResource
	source   Source
	catalog  *resource.CatalogHolder
	logger   logr.Logger
	opened   atomic.Pointer[open]
	memo     memo
}

// open is a collection whose definition is known.
type open struct {
	resource.Match
	cache *watchcache.Cache
}

// errNotServed says that the resource is not served, or not yet.
var errNotServed = errors.New("the resource is not served")

// open finds the definition, once it is published, and with it the cache. Built-in kinds keep both.
func (c *collection) open() (*open, error) {
	if known := c.opened.Load(); known != nil {
		return known, nil
	}
	catalog := c.catalog.Current()
	if catalog == nil {
		return nil, errNotServed
	}
	match, ok := catalog.Lookup(c.resource.Group, c.resource.Version, c.resource.Resource)
	if !ok {
		return nil, fmt.Errorf("%w: %s", errNotServed, c.resource)
	}
	found := &open{Match: match, cache: c.source.Cache(match)}
	c.opened.Store(found)
	return found, nil
}

// readWait bounds a read while the cache is being loaded; afterwards reads do not wait.
const readWait = 10 * time.Second

// snapshot is the present state.
func (c *collection) snapshot() (*open, *watchcache.Snapshot, error) {
	o, err := c.open()
	if err != nil {
		return nil, nil, err
	}
	ctx := context.Background()
	if !o.cache.Loaded() {
		limited, cancel := context.WithTimeout(ctx, readWait)
		defer cancel()
		ctx = limited
	}
	snapshot, err := o.cache.Snapshot(ctx, 0)
	return o, snapshot, err
}

// get returns the object under a key, "namespace/name" or "name"; nil if there is none.
func (c *collection) get(key string) (runtime.Object, error) {
	o, snapshot, err := c.snapshot()
	if err != nil {
		return nil, err
	}
	entry, ok := snapshot.Get(o.StoragePath + "/" + key)
	if !ok {
		return nil, nil
	}
	return c.decoded(entry)
}

// list returns the objects of a namespace, or all, that can be decoded.
func (c *collection) list(namespace string) ([]any, error) {
	var objects []any
	err := c.each(namespace, func(entry *watchcache.Entry) {
		if object := c.readable(entry); object != nil {
			objects = append(objects, object)
		}
	})
	return objects, err
}

// keys returns the keys of a namespace, or all.
func (c *collection) keys(namespace string) ([]string, error) {
	var keys []string
	err := c.each(namespace, func(entry *watchcache.Entry) { keys = append(keys, keyOf(entry)) })
	return keys, err
}

// each visits the entries of a namespace, or all.
func (c *collection) each(namespace string, visit func(*watchcache.Entry)) error {
	o, snapshot, err := c.snapshot()
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
		visit(entry)
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

// decoded returns the object of an entry, which is shared: nobody may change it.
func (c *collection) decoded(entry *watchcache.Entry) (runtime.Object, error) {
	decode := func() (runtime.Object, error) { return c.decode(entry) }
	return c.memo.at(entry.Path(), entry.Revision(), len(entry.Stored()), decode).object()
}

// readable returns nil for what is not there or cannot be decoded, which is then treated as if it were not there.
func (c *collection) readable(entry *watchcache.Entry) runtime.Object {
	if entry == nil {
		return nil
	}
	object, err := c.decoded(entry)
	if err != nil {
		c.logger.Error(err, "an object cannot be decoded and is passed over", "key", entry.Path())
		return nil
	}
	return object
}

func (c *collection) decode(entry *watchcache.Entry) (runtime.Object, error) {
	o, err := c.open()
	if err != nil {
		return nil, err
	}
	object, err := o.LoadExternal(o.Version, entry.Stored())
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
