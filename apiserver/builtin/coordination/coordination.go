// Package coordination defines the kinds of the API group coordination.k8s.io.
package coordination

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	_ "k8s.io/kubernetes/pkg/apis/coordination/install"
	"k8s.io/kubernetes/pkg/registry/coordination/lease"
	"k8s.io/kubernetes/pkg/registry/coordination/leasecandidate"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("coordination.k8s.io", "v1", "v1beta1", "v1alpha2")
	return []*resource.Definition{
		group.Define(definition.Kind{Name: "Lease", Versions: []string{"v1"}, Strategy: lease.Strategy}),
		group.Define(definition.Kind{
			Name: "LeaseCandidate", Versions: []string{"v1beta1", "v1alpha2"},
			Storage:  schema.GroupVersion{Group: "coordination.k8s.io", Version: "v1beta1"},
			Strategy: leasecandidate.Strategy, Attributes: leasecandidate.GetAttrs,
		}),
	}
}
