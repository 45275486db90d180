// Package system has the user of the server's own writes, and their conversion to internal versions.
package system

import (
	"context"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
)

// WithServerUser returns a context with the user that kube-apiserver's loopback client has.
func WithServerUser(ctx context.Context) context.Context {
	return request.WithUser(ctx, &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
}

// ToInternal returns a copy of an object in a served version, with defaults applied, in the internal version.
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
