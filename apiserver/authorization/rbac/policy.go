// Package rbac decides by Roles, ClusterRoles and their bindings.
//
// The policy indexes bindings by subject. A user's rules are compiled from the bindings of its own name and groups
// when first needed, so that the cost of a decision does not depend on how many other bindings exist, and are kept
// until an RBAC object changes.
package rbac

import (
	"sync"
	"sync/atomic"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
)

// Policy holds the RBAC objects in force. It is safe for concurrent use. Objects given to it must not change
// afterwards. It implements authorizer.Authorizer and authorizer.RuleResolver.
type Policy struct {
	mu           sync.RWMutex
	roles        map[string][]rbacv1.PolicyRule // by "namespace/name"
	clusterRoles map[string][]rbacv1.PolicyRule // by name
	bindings     map[string]*binding            // by "namespace/name"; "/name" for those of the cluster
	bySubject    map[scope]map[*binding]int     // to the position of the first such subject in the binding

	// The generations count changes; compiled rules remember those they were made from. Changes to Roles and
	// RoleBindings leave what a user may do in the whole cluster as it was.
	clusterGeneration   atomic.Int64
	namespaceGeneration atomic.Int64

	users userCache
}

// binding is a RoleBinding or a ClusterRoleBinding.
type binding struct {
	namespace string // "" for a ClusterRoleBinding
	name      string
	role      rbacv1.RoleRef
	subjects  []rbacv1.Subject
}

// scope is a subject in the namespace of a binding ("" for the cluster).
type scope struct {
	namespace string
	group     bool // else a user name
	name      string
}

// New returns a policy that allows nothing.
func New() *Policy {
	return &Policy{
		roles:        make(map[string][]rbacv1.PolicyRule),
		clusterRoles: make(map[string][]rbacv1.PolicyRule),
		bindings:     make(map[string]*binding),
		bySubject:    make(map[scope]map[*binding]int),
	}
}

// SetRole puts a Role in force, or removes it when nil. The key is "namespace/name", as for all four.
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

// SetClusterRole puts a ClusterRole in force, or removes it when nil. The key is its name.
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

// SetRoleBinding puts a RoleBinding in force, or removes it when nil. The key is "namespace/name".
func (p *Policy) SetRoleBinding(key string, object *rbacv1.RoleBinding) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unbind(key)
	if object != nil {
		p.bind(key, &binding{namespace: object.Namespace, name: object.Name, role: object.RoleRef, subjects: object.Subjects})
	}
	p.namespaceGeneration.Add(1)
}

// SetClusterRoleBinding puts a ClusterRoleBinding in force, or removes it when nil. The key is its name.
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

// scopeOf says whom a subject means in a binding of the namespace given; a service account without a namespace is one
// of the binding's own.
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
		name := serviceaccount.ServiceAccountUsernamePrefix + home + serviceaccount.ServiceAccountUsernameSeparator + subject.Name
		return scope{namespace: namespace, name: name}, home != ""
	}
	return scope{}, false
}
