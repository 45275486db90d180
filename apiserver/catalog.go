package apiserver

import (
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/metrics"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
)

// catalogs builds the catalogs with the built-in and the custom resources.
type catalogs struct {
	// mu serializes publishCustom.
	mu       sync.Mutex
	builtin  []*resource.Definition
	holder   *resource.CatalogHolder
	registry *registry.Registry
	groups   config.Extension
	metrics  *metrics.Registry
}

// newCatalogs publishes a catalog with the built-in resources.
func newCatalogs(
	builtin []*resource.Definition, holder *resource.CatalogHolder, r *registry.Registry, groups config.Extension,
	measured *metrics.Registry,
) *catalogs {
	c := &catalogs{builtin: builtin, holder: holder, registry: r, groups: groups, metrics: measured}
	c.publishCustom(nil)
	return c
}

// publishCustom publishes a catalog with the given custom resources, and drops the watch caches of definitions that
// have changed or been deleted. Watches of dropped caches end, so that clients start again with the new definition. It
// also drops the metrics of deleted definitions.
func (c *catalogs) publishCustom(custom []*resource.Definition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.holder.Current()
	after := before.With(append(c.builtin[:len(c.builtin):len(c.builtin)], c.served(custom)...)...)
	c.holder.Publish(after)
	for _, group := range before.Groups() {
		if after.Group(group.Name) == group {
			continue
		}
		for _, d := range group.Definitions() {
			if d.Source != resource.Custom {
				continue
			}
			next := after.Successor(d)
			if next == nil || next.Revision != d.Revision {
				c.registry.Release(d)
			}
			if next == nil {
				c.metrics.Forget(d.GroupResource())
			}
		}
	}
}

// served returns the definitions. Definitions in groups that are not served have no served versions.
func (c *catalogs) served(custom []*resource.Definition) []*resource.Definition {
	custom = slices.Clone(custom)
	for i, d := range custom {
		if !c.groups.Serves(d.Group) {
			unserved := *d
			unserved.Versions = nil
			custom[i] = &unserved
		}
	}
	return custom
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
