package rbac

import (
	"context"
	"errors"

	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	api "k8s.io/kubernetes/pkg/apis/rbac"
	rbacregistry "k8s.io/kubernetes/pkg/registry/rbac"
	"k8s.io/kubernetes/pkg/registry/rbac/validation"
)

// Rules resolves the RBAC rules of users and roles.
type Rules = validation.AuthorizationRuleResolver

// Guard implements upstream's escalation check: a write of a role or binding must not grant permissions that the user
// lacks, unless the user has the permission to escalate or bind.
type Guard struct {
	Authorizer authorizer.UnconditionalAuthorizer
	Rules      Rules
}

// Check returns an API status error if storing object would be an escalation. old is the object to be replaced, or nil
// for a create. The context must contain the user, the request info and the namespace. Kinds other than roles and
// bindings pass.
func (g Guard) Check(ctx context.Context, namespace string, object, old runtime.Object) error {
	if rbacregistry.EscalationAllowed(ctx) || onlyGarbageCollectorFields(object, old) {
		return nil
	}
	switch o := object.(type) {
	case *api.Role:
		return g.checkRole(ctx, "roles", o.Name, o.Rules, false)
	case *api.ClusterRole:
		previous, _ := old.(*api.ClusterRole)
		return g.checkRole(ctx, "clusterroles", o.Name, o.Rules, aggregates(o) || aggregates(previous))
	case *api.RoleBinding:
		return g.checkBinding(ctx, "rolebindings", namespace, o.Name, o.RoleRef)
	case *api.ClusterRoleBinding:
		return g.checkBinding(ctx, "clusterrolebindings", "", o.Name, o.RoleRef)
	}
	return nil
}

// onlyGarbageCollectorFields reports whether an update changes only fields that the garbage collector writes.
func onlyGarbageCollectorFields(object, old runtime.Object) bool {
	return old != nil && rbacregistry.IsOnlyMutatingGCFields(object, old, apiequality.Semantic)
}

// aggregates reports whether a role aggregates the rules of other roles.
func aggregates(role *api.ClusterRole) bool {
	return role != nil && role.AggregationRule != nil && len(role.AggregationRule.ClusterRoleSelectors) > 0
}

func (g Guard) checkRole(ctx context.Context, plural, name string, rules []api.PolicyRule, aggregated bool) error {
	if rbacregistry.RoleEscalationAuthorized(ctx, g.Authorizer) {
		return nil
	}
	if err := validation.ConfirmNoEscalationInternal(ctx, g.Rules, rules); err != nil {
		return apierrors.NewForbidden(api.Resource(plural), name, err)
	}
	if !aggregated {
		return nil
	}
	if err := validation.ConfirmNoEscalationInternal(ctx, g.Rules, everything()); err != nil {
		return apierrors.NewForbidden(api.Resource(plural), name,
			errors.New("must have cluster-admin privileges to use the aggregationRule"))
	}
	return nil
}

func everything() []api.PolicyRule {
	all := []string{"*"}
	return []api.PolicyRule{
		{Verbs: all, APIGroups: all, Resources: all},
		{Verbs: all, NonResourceURLs: all},
	}
}

func (g Guard) checkBinding(ctx context.Context, plural, namespace, name string, role api.RoleRef) error {
	if rbacregistry.BindingAuthorized(ctx, role, namespace, g.Authorizer) {
		return nil
	}
	reference := rbacv1.RoleRef{APIGroup: role.APIGroup, Kind: role.Kind, Name: role.Name}
	rules, err := g.Rules.GetRoleReferenceRules(ctx, reference, namespace)
	// The error of kube-apiserver's storage of roles has the resource of the request.
	if apierrors.IsNotFound(err) {
		return apierrors.NewNotFound(api.Resource(plural), role.Name)
	}
	if err != nil {
		return err
	}
	if err := validation.ConfirmNoEscalation(ctx, g.Rules, rules); err != nil {
		return apierrors.NewForbidden(api.Resource(plural), name, err)
	}
	return nil
}
