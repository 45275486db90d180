package host

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
)

// ByGroup returns a dynamic client that calls local for the given API groups and host for all others. It is used to
// read parameters of policies, which can be in both clusters.
func ByGroup(groups []string, local, host dynamic.Interface) dynamic.Interface {
	return byGroup{groups, local, host}
}

type byGroup struct {
	groups      []string
	local, host dynamic.Interface
}

// Resource implements dynamic.Interface.
func (c byGroup) Resource(resource schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	if slices.Contains(c.groups, resource.Group) {
		return c.local.Resource(resource)
	}
	return c.host.Resource(resource)
}
