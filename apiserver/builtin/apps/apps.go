// Package apps defines the kinds of the API group apps.
package apps

import (
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	"k8s.io/kubernetes/pkg/registry/apps/controllerrevision"
	"k8s.io/kubernetes/pkg/registry/apps/daemonset"
	"k8s.io/kubernetes/pkg/registry/apps/deployment"
	"k8s.io/kubernetes/pkg/registry/apps/replicaset"
	"k8s.io/kubernetes/pkg/registry/apps/statefulset"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/builtin/scale"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("apps", "v1")
	all := []string{"all"}
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "ControllerRevision", Strategy: controllerrevision.Strategy,
		}),
		group.Define(definition.Kind{
			Name: "DaemonSet", ShortNames: []string{"ds"}, Categories: all,
			Strategy: daemonset.Strategy, Status: daemonset.StatusStrategy, InternalMetadata: true,
		}),
		group.Define(definition.Kind{
			Name: "Deployment", ShortNames: []string{"deploy"}, Categories: all,
			Strategy: deployment.Strategy, Status: deployment.StatusStrategy,
			Subresources: []definition.Subresource{scale.Subresource(deployment.Strategy)},
		}),
		group.Define(definition.Kind{
			Name: "ReplicaSet", ShortNames: []string{"rs"}, Categories: all,
			Strategy: replicaset.Strategy, Status: replicaset.StatusStrategy, Attributes: replicaset.GetAttrs,
			Subresources: []definition.Subresource{scale.Subresource(replicaset.Strategy)},
		}),
		group.Define(definition.Kind{
			Name: "StatefulSet", ShortNames: []string{"sts"}, Categories: all,
			Strategy: statefulset.Strategy, Status: statefulset.StatusStrategy,
			Subresources: []definition.Subresource{scale.Subresource(statefulset.Strategy)},
		}),
	}
}
