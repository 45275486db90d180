package apiserver

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/authorization/rbac"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
)

// follower is the part of the registry that feeds what is kept in step with objects.
type follower interface {
	Follow(ctx context.Context, name schema.GroupResource, handle func(key string, object runtime.Object), synced func()) error
}

var _ follower = &registry.Client{}

// feedPolicy keeps the RBAC policy in step with the stored roles and bindings. synced is called once per resource.
func feedPolicy(ctx context.Context, objects follower, catalog *resource.Catalog, policy *rbac.Policy, synced func()) []func() error {
	set := map[string]func(key string, object runtime.Object){
		"roles": func(key string, object runtime.Object) {
			role, _ := object.(*rbacv1.Role)
			policy.SetRole(key, role)
		},
		"clusterroles": func(key string, object runtime.Object) {
			role, _ := object.(*rbacv1.ClusterRole)
			policy.SetClusterRole(key, role)
		},
		"rolebindings": func(key string, object runtime.Object) {
			binding, _ := object.(*rbacv1.RoleBinding)
			policy.SetRoleBinding(key, binding)
		},
		"clusterrolebindings": func(key string, object runtime.Object) {
			binding, _ := object.(*rbacv1.ClusterRoleBinding)
			policy.SetClusterRoleBinding(key, binding)
		},
	}
	var feeds []func() error
	for plural, handle := range set {
		name := schema.GroupResource{Group: rbacv1.GroupName, Resource: plural}
		match, ok := catalog.Find(name)
		if !ok {
			continue
		}
		handle := external(match.Version.Codec, handle)
		feeds = append(feeds, func() error { return objects.Follow(ctx, name, handle, synced) })
	}
	return feeds
}

// external hands objects on in the served version. What cannot be converted is treated as gone, which grants nothing.
func external(model resource.Codec, handle func(key string, object runtime.Object)) func(string, runtime.Object) {
	return func(key string, internal runtime.Object) {
		if internal == nil {
			handle(key, nil)
			return
		}
		object, err := model.External(internal)
		if err != nil {
			object = nil
		}
		handle(key, object)
	}
}
