package rbac

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
)

// grant is one rule of a user and the binding that grants it.
type grant struct {
	rule   *rbacv1.PolicyRule
	source *source
}

// source is a binding and the index of its first subject that matches the user.
type source struct {
	binding *binding
	subject int
	// reason is the reason of a decision to allow. It is built only once, because each allowed request needs it.
	reason string
}

// String describes the source as kube-apiserver does in the reason of a decision.
func (s *source) String() string {
	subject := s.binding.subjects[s.subject]
	who := subject.Name
	if subject.Kind == rbacv1.ServiceAccountKind {
		namespace := subject.Namespace
		if namespace == "" {
			namespace = s.binding.namespace
		}
		who += "/" + namespace
	}
	kind, name := "ClusterRoleBinding", s.binding.name
	if s.binding.namespace != "" {
		kind, name = "RoleBinding", name+"/"+s.binding.namespace
	}
	return fmt.Sprintf("%s %q of %s %q to %s %q", kind, name, s.binding.role.Kind, s.binding.role.Name, subject.Kind, who)
}

// rules are the rules of a user from the bindings of one scope. They are immutable.
type rules struct {
	grants []grant
	// errors has the errors of bindings whose role does not exist.
	errors []error

	// byResource maps a resource in the spelling of the rule ("pods", "pods/log", "*/scale", "*") to indexes in grants.
	byResource map[string][]int32
	// paths has the indexes in grants of rules with non-resource URLs.
	paths []int32

	clusterGeneration   int64
	namespaceGeneration int64
}

// compile returns the rules of a user from the bindings of a namespace, or from ClusterRoleBindings if namespace is "".
func (p *Policy) compile(who user.Info, namespace string) *rules {
	p.mu.RLock()
	defer p.mu.RUnlock()
	r := &rules{
		clusterGeneration: p.clusterGeneration.Load(), namespaceGeneration: p.namespaceGeneration.Load(),
		byResource: make(map[string][]int32),
	}
	for _, held := range p.held(who, namespace) {
		granted, err := p.roleRules(held.binding.role, namespace)
		if err != nil {
			r.errors = append(r.errors, err)
		}
		for i := range granted {
			r.add(&granted[i], held)
		}
	}
	return r
}

// held returns the bindings of a namespace whose subjects include the user or a group of the user, sorted by name.
func (p *Policy) held(who user.Info, namespace string) []*source {
	var held []*source
	first := make(map[*binding]*source)
	collect := func(at scope) {
		for b, position := range p.bySubject[at] {
			if known := first[b]; known != nil {
				known.subject = min(known.subject, position)
				continue
			}
			first[b] = &source{binding: b, subject: position}
			held = append(held, first[b])
		}
	}
	collect(scope{namespace: namespace, name: who.GetName()})
	for _, group := range who.GetGroups() {
		collect(scope{namespace: namespace, group: true, name: group})
	}
	for _, s := range held {
		s.reason = "RBAC: allowed by " + s.String()
	}
	slices.SortFunc(held, func(a, b *source) int { return cmp.Compare(a.binding.name, b.binding.name) })
	return held
}

// roleRules returns the rules of the role to which a binding in a namespace refers. The caller must hold the lock.
func (p *Policy) roleRules(role rbacv1.RoleRef, namespace string) ([]rbacv1.PolicyRule, error) {
	switch role.Kind {
	case "Role":
		if found, ok := p.roles[namespace+"/"+role.Name]; ok && namespace != "" {
			return found, nil
		}
		return nil, apierrors.NewNotFound(rbacv1.Resource("role"), role.Name)
	case "ClusterRole":
		if found, ok := p.clusterRoles[role.Name]; ok {
			return found, nil
		}
		return nil, apierrors.NewNotFound(rbacv1.Resource("clusterrole"), role.Name)
	}
	return nil, fmt.Errorf("unsupported role reference kind: %q", role.Kind)
}

func (r *rules) add(rule *rbacv1.PolicyRule, from *source) {
	position := int32(len(r.grants))
	r.grants = append(r.grants, grant{rule: rule, source: from})
	for _, resource := range rule.Resources {
		if positions := r.byResource[resource]; len(positions) == 0 || positions[len(positions)-1] != position {
			r.byResource[resource] = append(positions, position)
		}
	}
	if len(rule.NonResourceURLs) > 0 {
		r.paths = append(r.paths, position)
	}
}

// allowsResource returns a grant that allows a request for a resource, or nil.
func (r *rules) allowsResource(verb, group, resource, subresource, name string) *grant {
	if len(r.byResource) == 0 {
		return nil
	}
	if g := r.among(r.byResource["*"], verb, group, name); g != nil {
		return g
	}
	if subresource == "" {
		return r.among(r.byResource[resource], verb, group, name)
	}
	var room [96]byte
	combined := append(append(append(room[:0], resource...), '/'), subresource...)
	if g := r.among(r.byResource[string(combined)], verb, group, name); g != nil {
		return g
	}
	combined = append(append(room[:0], "*/"...), subresource...)
	return r.among(r.byResource[string(combined)], verb, group, name)
}

// among returns the first of the grants at the given positions that covers verb, group and name, or nil.
func (r *rules) among(positions []int32, verb, group, name string) *grant {
	for _, position := range positions {
		g := &r.grants[position]
		if covers(g.rule.Verbs, verb) && covers(g.rule.APIGroups, group) &&
			(len(g.rule.ResourceNames) == 0 || slices.Contains(g.rule.ResourceNames, name)) {
			return g
		}
	}
	return nil
}

// allowsPath returns a grant that allows a non-resource request, or nil.
func (r *rules) allowsPath(verb, path string) *grant {
	for _, position := range r.paths {
		if g := &r.grants[position]; covers(g.rule.Verbs, verb) && coversPath(g.rule.NonResourceURLs, path) {
			return g
		}
	}
	return nil
}

// covers reports whether a list contains the value or "*".
func covers(list []string, value string) bool {
	for _, item := range list {
		if item == value || item == "*" {
			return true
		}
	}
	return false
}

func coversPath(patterns []string, path string) bool {
	for _, pattern := range patterns {
		if pattern == "*" || pattern == path {
			return true
		}
		if strings.HasSuffix(pattern, "*") && strings.HasPrefix(path, strings.TrimRight(pattern, "*")) {
			return true
		}
	}
	return false
}
