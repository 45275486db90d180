package host

import (
	"slices"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// WithLocalSchemas returns a client of the host that reads discovery and OpenAPI from another server: policies mutate
// kinds of the extension server, which the host may not know yet.
func WithLocalSchemas(host kubernetes.Interface, local discovery.DiscoveryInterface) kubernetes.Interface {
	return localSchemas{host, local}
}

type localSchemas struct {
	kubernetes.Interface
	local discovery.DiscoveryInterface
}

// Discovery implements kubernetes.Interface.
func (c localSchemas) Discovery() discovery.DiscoveryInterface { return c.local }

// ByGroup returns a dynamic client that calls local for some API groups and host for all others. Parameters of policies
// can be in both.
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
