// Package discovery defines the kinds of the API group discovery.k8s.io.
package discovery

import (
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	"k8s.io/kubernetes/pkg/registry/discovery/endpointslice"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("discovery.k8s.io", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{Name: "EndpointSlice", Strategy: endpointslice.Strategy}),
	}
}
