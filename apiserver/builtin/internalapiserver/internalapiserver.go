// Package internalapiserver defines the kind of the API group internal.apiserver.k8s.io: which versions the replicas
// of the API server store objects in.
package internalapiserver

import (
	_ "k8s.io/kubernetes/pkg/apis/apiserverinternal/install"
	"k8s.io/kubernetes/pkg/registry/apiserverinternal/storageversion"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("internal.apiserver.k8s.io", "v1alpha1")
	return []*resource.Definition{
		group.Define(definition.Kind{Name: "StorageVersion", Strategy: storageversion.Strategy, Status: storageversion.StatusStrategy}),
	}
}
