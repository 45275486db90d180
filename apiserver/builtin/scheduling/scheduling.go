// Package scheduling defines the kinds of the API group scheduling.k8s.io.
package scheduling

import (
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	"k8s.io/kubernetes/pkg/registry/scheduling/priorityclass"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("scheduling.k8s.io", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{Name: "PriorityClass", ShortNames: []string{"pc"}, Strategy: priorityclass.Strategy}),
	}
}
