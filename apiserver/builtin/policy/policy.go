// Package policy defines the kinds of the API group policy.
package policy

import (
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	"k8s.io/kubernetes/pkg/registry/policy/poddisruptionbudget"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("policy", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "PodDisruptionBudget", ShortNames: []string{"pdb"},
			Strategy: poddisruptionbudget.Strategy, Status: poddisruptionbudget.StatusStrategy,
		}),
	}
}
