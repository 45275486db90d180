// Package node defines the kinds of the API group node.k8s.io.
package node

import (
	_ "k8s.io/kubernetes/pkg/apis/node/install"
	"k8s.io/kubernetes/pkg/registry/node/runtimeclass"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("node.k8s.io", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{Name: "RuntimeClass", Strategy: runtimeclass.Strategy}),
	}
}
