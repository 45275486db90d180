// Package lifecycle defines the kinds of the API group lifecycle.k8s.io: requests to evict pods, and their evictions.
package lifecycle

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	_ "k8s.io/kubernetes/pkg/apis/lifecycle/install"
	"k8s.io/kubernetes/pkg/registry/lifecycle/eviction"
	"k8s.io/kubernetes/pkg/registry/lifecycle/evictionrequest"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group. The strategy of Evictions reads clock.
func Definitions(builder *definition.Builder, clock clock.PassiveClock) []*resource.Definition {
	group := builder.Group("lifecycle.k8s.io", "v1alpha1")
	alpha := schema.GroupVersion{Group: "lifecycle.k8s.io", Version: "v1alpha1"}
	evictions, requests := eviction.NewStrategy(clock), evictionrequest.NewStrategy()
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "Eviction", Storage: alpha,
			Strategy: evictions, Status: eviction.NewStatusStrategy(evictions),
		}),
		group.Define(definition.Kind{
			Name: "EvictionRequest", Storage: alpha,
			Strategy: requests, Status: evictionrequest.NewStatusStrategy(requests),
		}),
	}
}
