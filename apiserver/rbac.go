package apiserver

import (
	"context"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/authorization/rbac"
	"quorate.dev/apiserver/resource"
)

// followRBAC keeps the RBAC policy up to date with the stored roles and bindings. The replica is not ready until the
// hook is done. If --runtime-config disables one of the four resources of RBAC, followRBAC never calls done, and the
// replica never becomes ready: the same happens in kube-apiserver, whose informers of that resource never sync.
func (s *cluster) followRBAC(ctx context.Context, done func()) error {
	handlers := rbacHandlers(s.auth.policy)
	var feeds []feed
	for plural, handle := range handlers {
		name := schema.GroupResource{Group: rbacv1.GroupName, Resource: plural}
		if match, ok := s.catalog.Current().Find(name); ok {
			feeds = append(feeds, feed{name, external(match.Version.Codec, handle)})
		}
	}
	return followAll(ctx, s.objects, feeds, len(handlers), done)
}

// rbacHandlers returns, by resource, the functions that update policy. A nil object means that the object has been
// deleted.
func rbacHandlers(policy *rbac.Policy) map[string]func(key string, object runtime.Object) {
	return map[string]func(key string, object runtime.Object){
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
}

// external returns a function that calls handle with objects in the served version. An object that cannot be converted
// counts as deleted, so that it grants no permissions.
func external(codec resource.Codec, handle func(key string, object runtime.Object)) func(string, runtime.Object) {
	return func(key string, internal runtime.Object) {
		if internal == nil {
			handle(key, nil)
			return
		}
		object, err := codec.External(internal)
		if err != nil {
			object = nil
		}
		handle(key, object)
	}
}
