// Package authorization decides whether a user may make a request: with the modes of --authorization-mode in their
// order, after the rule that members of system:masters may do everything.
package authorization

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	utilerrors "k8s.io/apimachinery/pkg/util/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"quorate.dev/apiserver/authorization/rbac"
)

// Mode is one authorization mode.
type Mode interface {
	authorizer.Authorizer
	authorizer.RuleResolver
}

// Authorizer tries its modes in order. The first that allows or denies decides.
type Authorizer struct {
	modes []Mode
}

// New returns the authorizer of the named modes. RBAC requires policy, Node requires node.
func New(names []string, policy *rbac.Policy, node Mode) (*Authorizer, error) {
	a := &Authorizer{}
	for _, name := range names {
		switch name {
		case "AlwaysAllow":
			a.modes = append(a.modes, AlwaysAllow{})
		case "AlwaysDeny":
			a.modes = append(a.modes, AlwaysDeny{})
		case "RBAC":
			if policy == nil {
				return nil, errors.New("authorization mode RBAC needs a policy")
			}
			a.modes = append(a.modes, policy)
		case "Node":
			if node == nil {
				return nil, errors.New("authorization mode Node needs a node authorizer")
			}
			a.modes = append(a.modes, node)
		default:
			return nil, fmt.Errorf("authorization mode %q is not supported", name)
		}
	}
	return a, nil
}

// Of returns an authorizer of modes that have no name in --authorization-mode.
func Of(modes ...Mode) *Authorizer { return &Authorizer{modes: modes} }

// Authorize implements authorizer.Authorizer.
func (a *Authorizer) Authorize(ctx context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	who := attributes.GetUser()
	if who == nil {
		return authorizer.DecisionNoOpinion, "", errors.New("no user on request")
	}
	if slices.Contains(who.GetGroups(), user.SystemPrivilegedGroup) {
		return authorizer.DecisionAllow, "", nil
	}
	var reasons []string
	var errs []error
	for _, mode := range a.modes {
		decision, reason, err := mode.Authorize(ctx, attributes)
		if decision != authorizer.DecisionNoOpinion {
			return decision, reason, err
		}
		if reason != "" {
			reasons = append(reasons, reason)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	return authorizer.DecisionNoOpinion, strings.Join(reasons, "\n"), utilerrors.NewAggregate(errs)
}

// RulesFor implements authorizer.RuleResolver. It returns the rules of all modes.
func (a *Authorizer) RulesFor(ctx context.Context, who user.Info, namespace string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	var resources []authorizer.ResourceRuleInfo
	var paths []authorizer.NonResourceRuleInfo
	var errs []error
	incomplete := false
	for _, mode := range a.modes {
		r, p, i, err := mode.RulesFor(ctx, who, namespace)
		resources, paths, incomplete = append(resources, r...), append(paths, p...), incomplete || i
		if err != nil {
			errs = append(errs, err)
		}
	}
	return resources, paths, incomplete, utilerrors.NewAggregate(errs)
}

// AlwaysAllow allows everything.
type AlwaysAllow struct{}

// Authorize implements authorizer.Authorizer.
func (AlwaysAllow) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionAllow, "", nil
}

// RulesFor implements authorizer.RuleResolver.
func (AlwaysAllow) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	all := []string{"*"}
	return []authorizer.ResourceRuleInfo{&authorizer.DefaultResourceRuleInfo{Verbs: all, APIGroups: all, Resources: all}},
		[]authorizer.NonResourceRuleInfo{&authorizer.DefaultNonResourceRuleInfo{Verbs: all, NonResourceURLs: all}}, false, nil
}

// AlwaysDeny allows nothing.
type AlwaysDeny struct{}

// Authorize implements authorizer.Authorizer.
func (AlwaysDeny) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "Everything is forbidden.", nil
}

// RulesFor implements authorizer.RuleResolver.
func (AlwaysDeny) RulesFor(context.Context, user.Info, string) ([]authorizer.ResourceRuleInfo, []authorizer.NonResourceRuleInfo, bool, error) {
	return nil, nil, false, nil
}
