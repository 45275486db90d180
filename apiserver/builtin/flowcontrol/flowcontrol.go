// Package flowcontrol defines the kinds of the API group flowcontrol.apiserver.k8s.io.
package flowcontrol

import (
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/flowschema"
	"k8s.io/kubernetes/pkg/registry/flowcontrol/prioritylevelconfiguration"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("flowcontrol.apiserver.k8s.io", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{Name: "FlowSchema", Strategy: flowschema.Strategy, Status: flowschema.StatusStrategy}),
		group.Define(definition.Kind{
			Name:     "PriorityLevelConfiguration",
			Strategy: prioritylevelconfiguration.Strategy, Status: prioritylevelconfiguration.StatusStrategy,
		}),
	}
}
