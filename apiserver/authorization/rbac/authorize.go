package rbac

import (
	"context"
	"fmt"

	rbacv1 "k8s.io/api/rbac/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
)

// Authorize implements authorizer.UnconditionalAuthorizer. It never denies: if no rule allows the request, it has no
// opinion.
func (p *Policy) Authorize(_ context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	who := attributes.GetUser()
	entry := p.users.of(who)
	cluster := p.clusterRules(entry, who)
	if g := allows(cluster, attributes); g != nil {
		return authorizer.DecisionAllow, g.source.reason, nil
	}
	errs := cluster.errors
	if namespace := attributes.GetNamespace(); namespace != "" {
		local := p.namespaceRules(entry, who, namespace)
		if g := allows(local, attributes); g != nil {
			return authorizer.DecisionAllow, g.source.reason, nil
		}
		errs = append(errs[:len(errs):len(errs)], local.errors...)
	}
	if len(errs) > 0 {
		return authorizer.DecisionNoOpinion, fmt.Sprintf("RBAC: %v", utilerrors.NewAggregate(errs)), nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func allows(r *rules, attributes authorizer.Attributes) *grant {
	if !attributes.IsResourceRequest() {
		return r.allowsPath(attributes.GetVerb(), attributes.GetPath())
	}
	return r.allowsResource(attributes.GetVerb(), attributes.GetAPIGroup(), attributes.GetResource(),
		attributes.GetSubresource(), attributes.GetName())
}

// RulesFor implements authorizer.RuleResolver.
func (p *Policy) RulesFor(
	ctx context.Context, who user.Info, namespace string,
) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	held, err := p.Resolver().RulesFor(ctx, who, namespace)
	var resources []authorizer.ResourceRuleInfo
	var paths []authorizer.NonResourceRuleInfo
	for _, rule := range held {
		if len(rule.Resources) > 0 {
			resources = append(resources, &authorizer.DefaultResourceRuleInfo{
				Verbs: rule.Verbs, APIGroups: rule.APIGroups, Resources: rule.Resources, ResourceNames: rule.ResourceNames,
			})
		}
		if len(rule.NonResourceURLs) > 0 {
			paths = append(paths, &authorizer.DefaultNonResourceRuleInfo{
				Verbs: rule.Verbs, NonResourceURLs: rule.NonResourceURLs,
			})
		}
	}
	return resources, paths, false, err
}

// Resolver returns a resolver of the policy's rules for upstream's escalation checks.
func (p *Policy) Resolver() Resolver { return Resolver{policy: p} }

// Resolver implements validation.AuthorizationRuleResolver.
type Resolver struct{ policy *Policy }

// GetRoleReferenceRules returns the rules of the role to which a binding in a namespace refers. namespace is "" for a
// ClusterRoleBinding.
func (r Resolver) GetRoleReferenceRules(
	_ context.Context, role rbacv1.RoleRef, namespace string,
) ([]rbacv1.PolicyRule, error) {
	r.policy.mu.RLock()
	defer r.policy.mu.RUnlock()
	return r.policy.roleRules(role, namespace)
}

// RulesFor returns all rules of a user in a namespace. The error lists the roles that do not exist.
func (r Resolver) RulesFor(ctx context.Context, who user.Info, namespace string) ([]rbacv1.PolicyRule, error) {
	var held []rbacv1.PolicyRule
	var errs []error
	r.VisitRulesFor(ctx, who, namespace, func(_ fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool {
		if rule != nil {
			held = append(held, *rule)
		}
		if err != nil {
			errs = append(errs, err)
		}
		return true
	})
	return held, utilerrors.NewAggregate(errs)
}

// VisitRulesFor calls visit with each rule of a user in a namespace, and with errors, until visit returns false.
func (r Resolver) VisitRulesFor(
	_ context.Context, who user.Info, namespace string,
	visit func(source fmt.Stringer, rule *rbacv1.PolicyRule, err error) bool,
) {
	entry := r.policy.users.of(who)
	scopes := []*rules{r.policy.clusterRules(entry, who)}
	if namespace != "" {
		scopes = append(scopes, r.policy.namespaceRules(entry, who, namespace))
	}
	for _, held := range scopes {
		for i := range held.grants {
			if !visit(held.grants[i].source, held.grants[i].rule, nil) {
				return
			}
		}
		for _, err := range held.errors {
			if !visit(nil, nil, err) {
				return
			}
		}
	}
}
