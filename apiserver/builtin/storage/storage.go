// Package storage defines the kinds of the API group storage.k8s.io.
package storage

import (
	_ "k8s.io/kubernetes/pkg/apis/storage/install"
	"k8s.io/kubernetes/pkg/registry/storage/csidriver"
	"k8s.io/kubernetes/pkg/registry/storage/csinode"
	"k8s.io/kubernetes/pkg/registry/storage/csistoragecapacity"
	"k8s.io/kubernetes/pkg/registry/storage/storageclass"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattachment"
	"k8s.io/kubernetes/pkg/registry/storage/volumeattributesclass"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("storage.k8s.io", "v1", "v1beta1")
	stable := []string{"v1"}
	return []*resource.Definition{
		group.Define(definition.Kind{
			Name: "CSIDriver", Versions: stable, ReturnsDeleted: true, Strategy: csidriver.Strategy,
		}),
		group.Define(definition.Kind{
			Name: "CSINode", Versions: stable, ReturnsDeleted: true,
			Strategy: csinode.Strategy, Status: csinode.StatusStrategy,
		}),
		group.Define(definition.Kind{
			Name: "CSIStorageCapacity", Versions: stable, Strategy: csistoragecapacity.Strategy, Plain: true,
		}),
		group.Define(definition.Kind{
			Name: "StorageClass", Versions: stable, ReturnsDeleted: true, ShortNames: []string{"sc"},
			Strategy: storageclass.Strategy, PrintsList: true,
		}),
		group.Define(definition.Kind{
			Name: "VolumeAttachment", Versions: stable, ReturnsDeleted: true,
			Strategy: volumeattachment.Strategy, Status: volumeattachment.StatusStrategy,
		}),
		group.Define(definition.Kind{
			Name: "VolumeAttributesClass", ReturnsDeleted: true, ShortNames: []string{"vac"},
			Strategy: volumeattributesclass.Strategy,
		}),
	}
}
