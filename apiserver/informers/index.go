package informers

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	"k8s.io/client-go/tools/cache"
)

// index maps the values of an index function to the keys of objects. It does not hold the objects.
type index struct {
	function     cache.IndexFunc
	registration cache.ResourceEventHandlerRegistration

	mu sync.RWMutex
	// byValue has sets of keys by value. Invariant: byValue is the inverse of byKey, and no set is empty.
	byValue map[string]map[string]struct{}
	// byKey has the values by key.
	byKey map[string][]string
}

// indexes are the indexes of an informer by name.
type indexes map[string]*index

// AddIndexers implements cache.SharedIndexInformer. It ignores the namespace index, because the watch cache is ordered
// by namespace.
func (i *informer) AddIndexers(functions cache.Indexers) error {
	for name, function := range functions {
		if name == cache.NamespaceIndex {
			continue
		}
		added := &index{function: function, byValue: map[string]map[string]struct{}{}, byKey: map[string][]string{}}
		if !i.addIndex(name, added) {
			return fmt.Errorf("indexer conflict: %s", name)
		}
		registration, err := i.AddEventHandler(added)
		if err != nil {
			return err
		}
		i.mu.Lock()
		added.registration = registration
		i.mu.Unlock()
		// The handler may have synced before registration was set.
		i.closeIfSynced()
	}
	return nil
}

func (i *informer) addIndex(name string, added *index) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.indexes[name] != nil {
		return false
	}
	i.indexes[name] = added
	return true
}

// OnAdd implements cache.ResourceEventHandler.
func (x *index) OnAdd(object any, _ bool) { x.set(object, true) }

// OnUpdate implements cache.ResourceEventHandler.
func (x *index) OnUpdate(_, object any) { x.set(object, true) }

// OnDelete implements cache.ResourceEventHandler.
func (x *index) OnDelete(object any) { x.set(object, false) }

// set updates the values of an object. An object for which the function returns an error has no values.
func (x *index) set(object any, present bool) {
	key, err := cache.MetaNamespaceKeyFunc(object)
	if err != nil {
		return
	}
	var values []string
	if present {
		if values, err = x.function(object); err != nil {
			values = nil
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, value := range x.byKey[key] {
		if delete(x.byValue[value], key); len(x.byValue[value]) == 0 {
			delete(x.byValue, value)
		}
	}
	delete(x.byKey, key)
	if len(values) == 0 {
		return
	}
	x.byKey[key] = values
	for _, value := range values {
		if x.byValue[value] == nil {
			x.byValue[value] = map[string]struct{}{}
		}
		x.byValue[value][key] = struct{}{}
	}
}

// keys returns the sorted keys of the objects with any of the given values.
func (x *index) keys(values ...string) []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	var keys []string
	for _, value := range values {
		keys = slices.AppendSeq(keys, maps.Keys(x.byValue[value]))
	}
	slices.Sort(keys)
	return slices.Compact(keys)
}

func (x *index) allValues() []string {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Sorted(maps.Keys(x.byValue))
}
