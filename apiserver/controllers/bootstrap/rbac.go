package bootstrap

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"
)

// reconcileAttempts bounds the attempts to write an object when writes conflict.
const reconcileAttempts = 5

func rbacResource(plural string) schema.GroupResource {
	return schema.GroupResource{Group: rbacv1.GroupName, Resource: plural}
}

func (b *Bootstrap) clusterRoles(ctx context.Context) error {
	var wanted []reconciliation.RuleOwner
	for _, role := range append(bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()...) {
		wanted = append(wanted, reconciliation.ClusterRoleRuleOwner{ClusterRole: &role})
	}
	return b.reconcileRoles(ctx, rbacResource("clusterroles"), wanted)
}

func (b *Bootstrap) roles(ctx context.Context) error {
	var wanted []reconciliation.RuleOwner
	for namespace, roles := range bootstrappolicy.NamespaceRoles() {
		for _, role := range roles {
			role.Namespace = namespace
			wanted = append(wanted, reconciliation.RoleRuleOwner{Role: &role})
		}
	}
	return b.reconcileRoles(ctx, rbacResource("roles"), wanted)
}

func (b *Bootstrap) clusterRoleBindings(ctx context.Context) error {
	var wanted []reconciliation.RoleBinding
	for _, binding := range append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...) {
		wanted = append(wanted, reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: &binding})
	}
	return b.reconcileBindings(ctx, rbacResource("clusterrolebindings"), wanted)
}

func (b *Bootstrap) roleBindings(ctx context.Context) error {
	var wanted []reconciliation.RoleBinding
	for namespace, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, binding := range bindings {
			binding.Namespace = namespace
			wanted = append(wanted, reconciliation.RoleBindingAdapter{RoleBinding: &binding})
		}
	}
	return b.reconcileBindings(ctx, rbacResource("rolebindings"), wanted)
}

func (b *Bootstrap) reconcileRoles(
	ctx context.Context, resource schema.GroupResource, wanted []reconciliation.RuleOwner,
) error {
	present, err := b.list(ctx, resource)
	if apierrors.IsNotFound(err) {
		return nil // disabled by --runtime-config
	}
	if err != nil {
		return err
	}
	var tasks []task
	for _, role := range wanted {
		tasks = append(tasks, func(ctx context.Context) error {
			known := present[key(role.GetNamespace(), role.GetName())]
			client := &client{ctx: ctx, bootstrap: b, resource: resource, known: known}
			err := retryOnConflict(client, func() error {
				options := reconciliation.ReconcileRoleOptions{
					Role: role.DeepCopyRuleOwner(), Client: roleClient{client}, Confirm: true,
				}
				result, err := options.Run()
				if err == nil && result.Protected && result.Operation != reconciliation.ReconcileNone {
					b.logger.Info("A role that opted out of reconciliation lacks permissions", "resource", resource.String(),
						"name", role.GetName())
				}
				return err
			})
			return wrap(err, resource, role.GetName())
		})
	}
	return runAll(ctx, tasks)
}

func (b *Bootstrap) reconcileBindings(
	ctx context.Context, resource schema.GroupResource, wanted []reconciliation.RoleBinding,
) error {
	present, err := b.list(ctx, resource)
	if apierrors.IsNotFound(err) {
		return nil // disabled by --runtime-config
	}
	if err != nil {
		return err
	}
	var tasks []task
	for _, binding := range wanted {
		tasks = append(tasks, func(ctx context.Context) error {
			known := present[key(binding.GetNamespace(), binding.GetName())]
			client := &client{ctx: ctx, bootstrap: b, resource: resource, known: known}
			err := retryOnConflict(client, func() error {
				options := reconciliation.ReconcileRoleBindingOptions{
					RoleBinding: binding.DeepCopyRoleBinding(), Client: bindingClient{client}, Confirm: true,
				}
				result, err := options.Run()
				if err == nil && result.Protected && result.Operation != reconciliation.ReconcileNone {
					b.logger.Info("A binding that opted out of reconciliation lacks subjects", "resource", resource.String(),
						"name", binding.GetName())
				}
				return err
			})
			return wrap(err, resource, binding.GetName())
		})
	}
	return runAll(ctx, tasks)
}

// retryOnConflict retries a reconciliation on conflicts.
func retryOnConflict(client *client, run func() error) error {
	for n := 1; ; n++ {
		err := run()
		if !apierrors.IsConflict(err) || n == reconcileAttempts || client.ctx.Err() != nil {
			return err
		}
	}
}

func wrap(err error, resource schema.GroupResource, name string) error {
	if err != nil {
		return fmt.Errorf("reconcile %s %s: %w", resource, name, err)
	}
	return nil
}
