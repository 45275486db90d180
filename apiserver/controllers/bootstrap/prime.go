package bootstrap

import (
	"context"
	"fmt"
	"maps"
	"slices"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"quorate.dev/apiserver/resource"
)

// primeClusterRoles preserves rules that users have added to a role which has become an aggregated role, because the
// rules of an aggregated role are overwritten. If the role that is aggregated into it does not exist, it is created as
// a copy of the former role. primeClusterRoles mirrors upstream's primeAggregatedClusterRoles, but does not stop at the
// first role that is already aggregated.
func (b *Bootstrap) primeClusterRoles(ctx context.Context) error {
	resource := rbacResource("clusterroles")
	present, err := b.latest(ctx, resource)
	if err != nil {
		return err
	}
	aggregated := bootstrappolicy.ClusterRolesToAggregate()
	for _, name := range slices.Sorted(maps.Keys(aggregated)) {
		target := aggregated[name]
		if present[target] != nil || present[name] == nil {
			continue
		}
		external, err := toExternal(present[name])
		if err != nil {
			return err
		}
		role := external.(*rbacv1.ClusterRole)
		if role.AggregationRule != nil {
			continue
		}
		rest.WipeObjectMetaSystemFields(role)
		role.Name, role.ResourceVersion = target, ""
		if err := b.createCopy(ctx, resource, name, role); err != nil {
			return err
		}
	}
	return nil
}

// primeClusterRoleBindings preserves changes of users when the policy splits a binding: the new binding is created with
// the subjects, labels and annotations of the former one, so that subjects which a user has removed are not added
// again. It mirrors upstream's primeSplitClusterRoleBindings.
func (b *Bootstrap) primeClusterRoleBindings(ctx context.Context) error {
	resource := rbacResource("clusterrolebindings")
	present, err := b.latest(ctx, resource)
	if err != nil {
		return err
	}
	split := bootstrappolicy.ClusterRoleBindingsToSplit()
	for _, name := range slices.Sorted(maps.Keys(split)) {
		template := split[name]
		if present[template.Name] != nil || present[name] == nil {
			continue
		}
		external, err := toExternal(present[name])
		if err != nil {
			return err
		}
		source, binding := external.(*rbacv1.ClusterRoleBinding), template.DeepCopy()
		binding.Subjects, binding.Labels, binding.Annotations = source.Subjects, source.Labels, source.Annotations
		if err := b.createCopy(ctx, resource, name, binding); err != nil {
			return err
		}
	}
	return nil
}

// createCopy creates a copied object. It does nothing if another replica has created the object.
func (b *Bootstrap) createCopy(
	ctx context.Context, resource schema.GroupResource, source string, o runtime.Object,
) error {
	if _, err := b.create(ctx, resource, o); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("copy %s %s: %w", resource, source, err)
	}
	return nil
}

// latest reads the objects of a cluster-scoped resource from etcd, by name. The result is empty if --runtime-config
// disables the resource.
func (b *Bootstrap) latest(ctx context.Context, gr schema.GroupResource) (map[string]runtime.Object, error) {
	objects, err := b.objects.List(ctx, resource.Key{GroupResource: gr}, resource.ReadOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", gr, err)
	}
	byName := make(map[string]runtime.Object, len(objects))
	for _, object := range objects {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return nil, err
		}
		byName[accessor.GetName()] = object
	}
	return byName, nil
}
