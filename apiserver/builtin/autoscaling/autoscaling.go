// Package autoscaling defines the kinds of the API group autoscaling.
package autoscaling

import (
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	"k8s.io/kubernetes/pkg/registry/autoscaling/horizontalpodautoscaler"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("autoscaling", "v2", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "HorizontalPodAutoscaler", ShortNames: []string{"hpa"}, Categories: []string{"all"},
			Strategy: horizontalpodautoscaler.Strategy, Status: horizontalpodautoscaler.StatusStrategy, HubMetadata: true,
		}),
	}
}
