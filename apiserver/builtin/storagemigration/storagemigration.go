// Package storagemigration defines the kind of the API group storagemigration.k8s.io.
package storagemigration

import (
	_ "k8s.io/kubernetes/pkg/apis/storagemigration/install"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/registry/storagemigration/storagemigration"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("storagemigration.k8s.io", "v1beta1")
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "StorageVersionMigration", Gate: features.StorageVersionMigrator,
			Strategy: storagemigration.Strategy, Status: storagemigration.StatusStrategy,
		}),
	}
}
