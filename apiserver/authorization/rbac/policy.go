// Package rbac is the authorization mode RBAC.
//
// The policy indexes bindings by subject. The rules of a user are compiled on first use, from the bindings of the
// user's name and groups, and cached until an RBAC object changes. The cost of a decision therefore does not depend on
// the number of bindings of other subjects.
package rbac

import (
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// Policy has the current RBAC objects. It is safe for concurrent use. The caller must not modify objects after passing
// them to it. Policy implements authorizer.UnconditionalAuthorizer and authorizer.RuleResolver.
type Policy struct {
	mu sync.RWMutex
	// roles has the rules of Roles by "namespace/name".
	roles map[string][]rbacv1.PolicyRule
	// clusterRoles has the rules of ClusterRoles by name.
	clusterRoles map[string][]rbacv1.PolicyRule
	// bindings has RoleBindings by "namespace/name", and ClusterRoleBindings by "/name".
	bindings map[string]*binding
	// bySubject maps a subject to its bindings, and a binding to the index of the first such subject in it.
	bySubject map[scope]map[*binding]int

	// The generations count changes. Compiled rules contain the generations that they were compiled from, and are valid
	// while these are current. Changes of Roles and RoleBindings do not affect the rules from ClusterRoleBindings.
	clusterGeneration   atomic.Int64
	namespaceGeneration atomic.Int64

	users userCache
}

// binding is a RoleBinding or a ClusterRoleBinding.
type binding struct {
	// namespace is "" for a ClusterRoleBinding.
	namespace string
	name      string
	role      rbacv1.RoleRef
	subjects  []rbacv1.Subject
}

// scope is a subject and the namespace of a binding, which is "" for a ClusterRoleBinding.
type scope struct {
	namespace string
	// group is set if name is the name of a group; otherwise name is the name of a user.
	group bool
	name  string
}

// New returns an empty policy, which allows nothing.
func New() *Policy {
	return &Policy{
		roles:        make(map[string][]rbacv1.PolicyRule),
		clusterRoles: make(map[string][]rbacv1.PolicyRule),
		bindings:     make(map[string]*binding),
		bySubject:    make(map[scope]map[*binding]int),
	}
}

// SetRole adds or replaces a Role, or removes it if role is nil. The key is "namespace/name".
func (p *Policy) SetRole(key string, role *rbacv1.Role) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if role == nil {
		delete(p.roles, key)
	} else {
		p.roles[key] = role.Rules
	}
	p.namespaceGeneration.Add(1)
}

// SetClusterRole adds or replaces a ClusterRole, or removes it if role is nil. The key is its name.
func (p *Policy) SetClusterRole(key string, role *rbacv1.ClusterRole) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if role == nil {
		delete(p.clusterRoles, key)
	} else {
		p.clusterRoles[key] = role.Rules
	}
	p.clusterGeneration.Add(1)
}

// SetRoleBinding adds or replaces a RoleBinding, or removes it if object is nil. The key is "namespace/name".
func (p *Policy) SetRoleBinding(key string, object *rbacv1.RoleBinding) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unbind(key)
	if object != nil {
		p.bind(key, &binding{namespace: object.Namespace, name: object.Name, role: object.RoleRef, subjects: object.Subjects})
	}
	p.namespaceGeneration.Add(1)
}

// SetClusterRoleBinding adds or replaces a ClusterRoleBinding, or removes it if object is nil. The key is its name.
func (p *Policy) SetClusterRoleBinding(key string, object *rbacv1.ClusterRoleBinding) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unbind("/" + key)
	if object != nil {
		p.bind("/"+key, &binding{name: object.Name, role: object.RoleRef, subjects: object.Subjects})
	}
	p.clusterGeneration.Add(1)
}

func (p *Policy) bind(key string, b *binding) {
	p.bindings[key] = b
	for position, subject := range b.subjects {
		at, ok := scopeOf(subject, b.namespace)
		if !ok {
			continue
		}
		bindings := p.bySubject[at]
		if bindings == nil {
			bindings = make(map[*binding]int, 1)
			p.bySubject[at] = bindings
		}
		if _, earlier := bindings[b]; !earlier {
			bindings[b] = position
		}
	}
}

func (p *Policy) unbind(key string) {
	b := p.bindings[key]
	if b == nil {
		return
	}
	delete(p.bindings, key)
	for _, subject := range b.subjects {
		at, _ := scopeOf(subject, b.namespace)
		delete(p.bySubject[at], b)
		if len(p.bySubject[at]) == 0 {
			delete(p.bySubject, at)
		}
	}
}

// scopeOf returns the scope of a subject in a binding, and reports whether the subject is valid. A service account
// without a namespace is in the namespace of the binding.
func scopeOf(subject rbacv1.Subject, namespace string) (scope, bool) {
	switch subject.Kind {
	case rbacv1.UserKind:
		return scope{namespace: namespace, name: subject.Name}, true
	case rbacv1.GroupKind:
		return scope{namespace: namespace, group: true, name: subject.Name}, true
	case rbacv1.ServiceAccountKind:
		home := subject.Namespace
		if home == "" {
			home = namespace
		}
		name := serviceaccount.ServiceAccountUsernamePrefix + home +
			serviceaccount.ServiceAccountUsernameSeparator + subject.Name
		return scope{namespace: namespace, name: name}, home != ""
	}
	return scope{}, false
}
