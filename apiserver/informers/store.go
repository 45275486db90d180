package informers

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/tools/cache"

	"quorate.dev/apiserver/watchcache"
)

// store implements a read-only cache.Indexer on the watch cache. Methods that cannot return an error log it.
type store struct{ *informer }

var _ cache.Indexer = store{}

var errReadOnly = errors.New("the store of the informer is read-only")

// Get implements cache.Store.
func (s store) Get(object any) (any, bool, error) {
	key, err := cache.MetaNamespaceKeyFunc(object)
	if err != nil {
		return nil, false, err
	}
	return s.GetByKey(key)
}

// GetByKey implements cache.Store.
func (s store) GetByKey(key string) (any, bool, error) {
	object, err := s.get(key)
	if object == nil || err != nil {
		return nil, false, err
	}
	return object, true, nil
}

// List implements cache.Store.
func (s store) List() []any {
	objects, err := s.list("")
	s.report(err)
	return objects
}

// ListKeys implements cache.Store.
func (s store) ListKeys() []string {
	keys, err := s.keys("")
	s.report(err)
	return keys
}

func (s store) report(err error) {
	if err != nil {
		s.logger.Error(err, "Failed to list a resource")
	}
}

// LastStoreSyncResourceVersion implements cache.Store.
func (s store) LastStoreSyncResourceVersion() string {
	if !isClosed(s.loaded) {
		return ""
	}
	_, snapshot, err := s.snapshot()
	if err != nil {
		return ""
	}
	return strconv.FormatInt(snapshot.Revision(), 10)
}

// Bookmark implements cache.Store.
func (s store) Bookmark(string) {}

// Resync implements cache.Store.
func (s store) Resync() error { return nil }

// Add implements cache.Store.
func (s store) Add(any) error { return errReadOnly }

// Update implements cache.Store.
func (s store) Update(any) error { return errReadOnly }

// Delete implements cache.Store.
func (s store) Delete(any) error { return errReadOnly }

// Replace implements cache.Store.
func (s store) Replace([]any, string) error { return errReadOnly }

// Index implements cache.Indexer.
func (s store) Index(name string, object any) ([]any, error) {
	if name == cache.NamespaceIndex {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return nil, err
		}
		return s.list(accessor.GetNamespace())
	}
	index, err := s.index(name)
	if err != nil {
		return nil, err
	}
	values, err := index.function(object)
	if err != nil {
		return nil, err
	}
	return s.objects(index.keys(values...))
}

// IndexKeys implements cache.Indexer.
func (s store) IndexKeys(name, value string) ([]string, error) {
	if name == cache.NamespaceIndex {
		return s.keys(value)
	}
	index, err := s.index(name)
	if err != nil {
		return nil, err
	}
	return index.keys(value), nil
}

// ByIndex implements cache.Indexer.
func (s store) ByIndex(name, value string) ([]any, error) {
	if name == cache.NamespaceIndex {
		return s.list(value)
	}
	keys, err := s.IndexKeys(name, value)
	if err != nil {
		return nil, err
	}
	return s.objects(keys)
}

// objects returns the objects with the given keys that exist.
func (s store) objects(keys []string) ([]any, error) {
	var objects []any
	for _, key := range keys {
		object, err := s.get(key)
		if err != nil {
			return nil, err
		}
		if object != nil {
			objects = append(objects, object)
		}
	}
	return objects, nil
}

// ListIndexFuncValues implements cache.Indexer.
func (s store) ListIndexFuncValues(name string) []string {
	if name == cache.NamespaceIndex {
		return s.namespaces()
	}
	index, err := s.index(name)
	if err != nil {
		return nil
	}
	return index.allValues()
}

// namespaces returns the sorted namespaces of the objects.
func (s store) namespaces() []string {
	var namespaces []string
	s.report(s.forEach("", func(_ *open, entry *watchcache.Entry) {
		namespaces = append(namespaces, entry.Namespace())
	}))
	slices.Sort(namespaces)
	return slices.Compact(namespaces)
}

func (i *informer) index(name string) (*index, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if found := i.indexes[name]; found != nil {
		return found, nil
	}
	return nil, fmt.Errorf("Index with name %s does not exist", name) // client-go's text
}

// GetIndexers implements cache.Indexer.
func (s store) GetIndexers() cache.Indexers {
	s.mu.Lock()
	defer s.mu.Unlock()
	functions := cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc}
	for name, index := range s.indexes {
		functions[name] = index.function
	}
	return functions
}
