// Package rbac defines the kinds of the API group rbac.authorization.k8s.io.
package rbac

import (
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrole"
	"k8s.io/kubernetes/pkg/registry/rbac/clusterrolebinding"
	"k8s.io/kubernetes/pkg/registry/rbac/role"
	"k8s.io/kubernetes/pkg/registry/rbac/rolebinding"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

// Definitions returns the kinds of the group.
func Definitions(builder *definition.Builder) []*resource.Definition {
	group := builder.Group("rbac.authorization.k8s.io", "v1")
	return []*resource.Definition{
		group.Define(definition.Kind{Name: "ClusterRole", Strategy: clusterrole.Strategy, Plain: true}),
		group.Define(definition.Kind{Name: "ClusterRoleBinding", Strategy: clusterrolebinding.Strategy}),
		group.Define(definition.Kind{Name: "Role", Strategy: role.Strategy, Plain: true}),
		group.Define(definition.Kind{Name: "RoleBinding", Strategy: rolebinding.Strategy}),
	}
}
