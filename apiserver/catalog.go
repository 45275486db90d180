package apiserver

import (
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
)

// catalogs puts together what is served: the built-in kinds always, custom resources as they come and go.
type catalogs struct {
	mu       sync.Mutex
	builtin  []*resource.Definition
	custom   []*resource.Definition
	holder   *resource.CatalogHolder
	registry *registry.Registry
}

// publishCustom puts the custom resources that are served now in force, and forgets what is cached of those that
// changed or went: their clients start again with the new definition.
func (c *catalogs) publishCustom(custom []*resource.Definition) {
	c.mu.Lock()
	defer c.mu.Unlock()
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

// isBuiltIn reports whether a resource is served whatever custom resources say.
func (c *catalogs) isBuiltIn(name schema.GroupResource) bool {
	for _, d := range c.builtin {
		if d.GroupResource() == name {
			return true
		}
	}
	return false
}
