package rbac

import (
	"hash/maphash"
	"slices"
	"sync"
	"sync/atomic"

	"k8s.io/apiserver/pkg/authentication/user"
)

// These are the maximum sizes of the caches. A full cache is cleared; entries that are still in use are compiled again.
const (
	maxUsers             = 10_000
	maxNamespacesPerUser = 1_000
)

// userCache caches compiled rules by a hash of user name and groups. The zero value is ready to use.
type userCache struct {
	mu    sync.RWMutex
	users map[uint64]*userRules
}

var seed = maphash.MakeSeed()

// userRules caches the compiled rules of one user.
type userRules struct {
	name   string
	groups []string

	cluster atomic.Pointer[rules]

	mu         sync.RWMutex
	namespaces map[string]*rules
}

// of returns the entry of a user, and creates it if necessary.
func (c *userCache) of(who user.Info) *userRules {
	name, groups := who.GetName(), who.GetGroups()
	sum := maphash.String(seed, name)
	for _, group := range groups {
		sum = sum*31 + maphash.String(seed, group)
	}
	c.mu.RLock()
	entry := c.users[sum]
	c.mu.RUnlock()
	if entry != nil && entry.name == name && slices.Equal(entry.groups, groups) {
		return entry
	}
	entry = &userRules{name: name, groups: slices.Clone(groups)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.users == nil || len(c.users) >= maxUsers {
		c.users = make(map[uint64]*userRules)
	}
	c.users[sum] = entry
	return entry
}

// clusterRules returns the rules of a user from ClusterRoleBindings.
func (p *Policy) clusterRules(entry *userRules, who user.Info) *rules {
	if r := entry.cluster.Load(); r != nil && r.clusterGeneration == p.clusterGeneration.Load() {
		return r
	}
	r := p.compile(who, "")
	entry.cluster.Store(r)
	return r
}

// namespaceRules returns the rules of a user from the RoleBindings of a namespace.
func (p *Policy) namespaceRules(entry *userRules, who user.Info, namespace string) *rules {
	entry.mu.RLock()
	r := entry.namespaces[namespace]
	entry.mu.RUnlock()
	if r != nil && r.clusterGeneration == p.clusterGeneration.Load() &&
		r.namespaceGeneration == p.namespaceGeneration.Load() {
		return r
	}
	r = p.compile(who, namespace)
	entry.mu.Lock()
	defer entry.mu.Unlock()
	if entry.namespaces == nil || len(entry.namespaces) >= maxNamespacesPerUser {
		entry.namespaces = make(map[string]*rules)
	}
	entry.namespaces[namespace] = r
	return r
}
