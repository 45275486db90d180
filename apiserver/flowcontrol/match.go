package flowcontrol

import (
	"slices"
	"strings"

	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
)

// matches reports whether a FlowSchema selects a request. This function and the functions below are equivalent to
// upstream's matchesFlowSchema, but use pointers, because upstream copies each rule that it examines.
// TestMatchesAsUpstream compares the results.
func matches(schema *flowcontrolv1.FlowSchema, who user.Info, info *request.RequestInfo) bool {
	rules := schema.Spec.Rules
	for i := range rules {
		rule := &rules[i]
		if matchesRule(rule, info) && matchesSubject(rule.Subjects, who) {
			return true
		}
	}
	return false
}

func matchesRule(rule *flowcontrolv1.PolicyRulesWithSubjects, info *request.RequestInfo) bool {
	if !info.IsResourceRequest {
		return matchesNonResource(rule.NonResourceRules, info)
	}
	for i := range rule.ResourceRules {
		if matchesResource(&rule.ResourceRules[i], info) {
			return true
		}
	}
	return false
}

func matchesResource(rule *flowcontrolv1.ResourcePolicyRule, info *request.RequestInfo) bool {
	if !has(rule.Verbs, info.Verb, flowcontrolv1.VerbAll) ||
		!has(rule.APIGroups, info.APIGroup, flowcontrolv1.APIGroupAll) {
		return false
	}
	if info.Subresource == "" {
		if !has(rule.Resources, info.Resource, flowcontrolv1.ResourceAll) {
			return false
		}
	} else if !hasSubresource(rule.Resources, info) {
		return false
	}
	if info.Namespace == "" {
		return rule.ClusterScope
	}
	return has(rule.Namespaces, info.Namespace, flowcontrolv1.NamespaceEvery)
}

// has reports whether a list contains a value or consists of the wildcard. Validation refuses a wildcard in a list
// with other elements.
func has(list []string, value, wildcard string) bool {
	return len(list) == 1 && list[0] == wildcard || slices.Contains(list, value)
}

func hasSubresource(list []string, info *request.RequestInfo) bool {
	if len(list) == 1 && list[0] == flowcontrolv1.ResourceAll {
		return true
	}
	for _, one := range list {
		rest, ok := strings.CutPrefix(one, info.Resource)
		if ok && len(rest) > 0 && rest[0] == '/' && rest[1:] == info.Subresource {
			return true
		}
	}
	return false
}

func matchesNonResource(rules []flowcontrolv1.NonResourcePolicyRule, info *request.RequestInfo) bool {
	for i := range rules {
		rule := &rules[i]
		if has(rule.Verbs, info.Verb, flowcontrolv1.VerbAll) &&
			slices.ContainsFunc(rule.NonResourceURLs, func(url string) bool {
				return matchesPath(url, info.Path)
			}) {
			return true
		}
	}
	return false
}

// matchesPath reports whether a path equals the path of a rule or is below it.
func matchesPath(rule, path string) bool {
	if rule == flowcontrolv1.NonResourceAll || rule == path {
		return true
	}
	rest, ok := strings.CutPrefix(path, strings.TrimSuffix(strings.TrimSuffix(rule, "*"), "/"))
	return ok && strings.HasPrefix(rest, "/")
}

func matchesSubject(subjects []flowcontrolv1.Subject, who user.Info) bool {
	for i := range subjects {
		subject := &subjects[i]
		switch subject.Kind {
		case flowcontrolv1.SubjectKindUser:
			if u := subject.User; u != nil && (u.Name == flowcontrolv1.NameAll || u.Name == who.GetName()) {
				return true
			}
		case flowcontrolv1.SubjectKindGroup:
			if g := subject.Group; g != nil && (g.Name == flowcontrolv1.NameAll || slices.Contains(who.GetGroups(), g.Name)) {
				return true
			}
		case flowcontrolv1.SubjectKindServiceAccount:
			if a := subject.ServiceAccount; a != nil && isServiceAccount(a, who.GetName()) {
				return true
			}
		}
	}
	return false
}

func isServiceAccount(subject *flowcontrolv1.ServiceAccountSubject, name string) bool {
	if subject.Name != flowcontrolv1.NameAll {
		return serviceaccount.MatchesUsername(subject.Namespace, subject.Name, name)
	}
	rest, ok := strings.CutPrefix(name, serviceaccount.ServiceAccountUsernamePrefix)
	if ok {
		rest, ok = strings.CutPrefix(rest, subject.Namespace)
	}
	return ok && strings.HasPrefix(rest, serviceaccount.ServiceAccountUsernameSeparator)
}
