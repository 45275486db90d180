// Package coordination defines the kinds of the API group coordination.k8s.io.
package coordination

import (
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("coordination.k8s.io", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{Name: "Lease", Strategy: lease.Strategy}),
	}
}
