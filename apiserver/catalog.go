package apiserver

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
)

// catalogs builds the catalog of the built-in and the custom resources.
type catalogs struct {
	mu       sync.Mutex // serializes publishCustom
	builtin  []*resource.Definition
	custom   []*resource.Definition
	holder   *resource.CatalogHolder
	registry *registry.Registry
	serves   func(group string) bool // of custom resources
}

// publishCustom publishes a catalog with the custom resources, and drops the caches of definitions that were changed or
// deleted. Their watches end, so that clients start again with the new definition.
func (c *catalogs) publishCustom(custom []*resource.Definition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	custom = c.served(custom)
	before := c.custom
	c.custom = custom
	c.holder.Publish(resource.NewCatalog(append(c.builtin[:len(c.builtin):len(c.builtin)], custom...)...))
	kept := make(map[string]string, len(custom))
	for _, d := range custom {
		kept[d.StoragePath] = d.Revision
	}
	for _, d := range before {
		if revision, ok := kept[d.StoragePath]; !ok || revision != d.Revision {
			c.registry.Release(d)
		}
	}
}

// served returns the definitions of served groups.
func (c *catalogs) served(custom []*resource.Definition) []*resource.Definition {
	return slices.DeleteFunc(slices.Clone(custom), func(d *resource.Definition) bool { return !c.serves(d.Group) })
}

// isBuiltIn reports whether a resource is built-in.
func (c *catalogs) isBuiltIn(name schema.GroupResource) bool {
	for _, d := range c.builtin {
		if d.GroupResource() == name {
			return true
		}
	}
	return false
}
