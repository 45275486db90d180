// Package system is what the server's own parts have in common when they write objects: on whose behalf, and in which form.
package system

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// Context is that of what the server itself does, whoever's request it is for.
func WithServerUser(ctx context.Context) context.Context {
	return request.WithUser(ctx, &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
}

// ToInternal returns the internal version of an object in a served version, defaults applied. The argument stays as it is.
func ToInternal(external runtime.Object) (runtime.Object, error) {
	external = external.DeepCopyObject()
	legacyscheme.Scheme.Default(external)
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(external)
	if err != nil {
		return nil, err
	}
	internal := schema.GroupVersion{Group: kinds[0].Group, Version: runtime.APIVersionInternal}
	return legacyscheme.Scheme.ConvertToVersion(external, internal)
}
