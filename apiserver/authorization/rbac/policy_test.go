package rbac

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/component-helpers/auth/rbac/validation"
)

// The names of random objects and requests. They are few, so that requests match objects.
var (
	users      = []string{"alice", "bob", "system:serviceaccount:a:builder", "system:serviceaccount:b:builder"}
	groups     = []string{"dev", "ops", "system:authenticated"}
	namespaces = []string{"", "a", "b"}
	roleNames  = []string{"r1", "r2", "r3", "r4"}
	verbs      = []string{"get", "list", "create", "*"}
	apiGroups  = []string{"", "apps", "*"}
	resources  = []string{"pods", "pods/log", "*/scale", "deployments", "deployments/scale", "*"}
	objects    = []string{"x", "y"}
	paths      = []string{"/healthz", "/healthz/*", "/metrics", "*", "/api*"}
)

func pick[T any](r *rand.Rand, from []T) T { return from[r.IntN(len(from))] }

func some(r *rand.Rand, from []string, least int) []string {
	var chosen []string
	for range least + r.IntN(3) {
		chosen = append(chosen, pick(r, from))
	}
	return chosen
}

func randomRules(r *rand.Rand, inNamespace bool) []rbacv1.PolicyRule {
	var rules []rbacv1.PolicyRule
	for range r.IntN(3) {
		if !inNamespace && r.IntN(4) == 0 {
			rules = append(rules, rbacv1.PolicyRule{Verbs: some(r, verbs, 1), NonResourceURLs: some(r, paths, 1)})
			continue
		}
		rule := rbacv1.PolicyRule{
			Verbs: some(r, verbs, 1), APIGroups: some(r, apiGroups, 1), Resources: some(r, resources, 1),
		}
		if r.IntN(3) == 0 {
			rule.ResourceNames = some(r, objects, 1)
		}
		rules = append(rules, rule)
	}
	return rules
}

func randomSubjects(r *rand.Rand) []rbacv1.Subject {
	var subjects []rbacv1.Subject
	for range r.IntN(3) {
		switch r.IntN(4) {
		case 0:
			subjects = append(subjects, rbacv1.Subject{Kind: "User", Name: pick(r, users)})
		case 1:
			subjects = append(subjects, rbacv1.Subject{Kind: "Group", Name: pick(r, groups)})
		case 2:
			subjects = append(subjects, rbacv1.Subject{Kind: "ServiceAccount", Name: "builder", Namespace: pick(r, namespaces)})
		default:
			subjects = append(subjects, rbacv1.Subject{Kind: "Pod", Name: pick(r, users)})
		}
	}
	return subjects
}

// world has the same objects twice: in a Policy, and in plain lists that are searched linearly.
type world struct {
	policy   *Policy
	roles    map[string][]rbacv1.PolicyRule
	bindings map[string]rbacv1.RoleBinding
}

func newWorld() *world {
	return &world{policy: New(), roles: map[string][]rbacv1.PolicyRule{}, bindings: map[string]rbacv1.RoleBinding{}}
}

// change sets or removes a random object in both.
func (w *world) change(r *rand.Rand) {
	namespace, name := pick(r, namespaces), pick(r, roleNames)
	key := namespace + "/" + name
	remove := r.IntN(4) == 0
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	if r.IntN(2) == 0 {
		rules := randomRules(r, namespace != "")
		w.roles[key] = rules
		if remove {
			delete(w.roles, key)
		}
		switch {
		case namespace == "" && remove:
			w.policy.SetClusterRole(name, nil)
		case namespace == "":
			w.policy.SetClusterRole(name, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules})
		case remove:
			w.policy.SetRole(key, nil)
		default:
			w.policy.SetRole(key, &rbacv1.Role{ObjectMeta: meta, Rules: rules})
		}
		return
	}
	ref := rbacv1.RoleRef{Kind: "ClusterRole", Name: pick(r, roleNames)}
	if namespace != "" && r.IntN(2) == 0 {
		ref.Kind = "Role"
	}
	binding := rbacv1.RoleBinding{ObjectMeta: meta, RoleRef: ref, Subjects: randomSubjects(r)}
	w.bindings[key] = binding
	if remove {
		delete(w.bindings, key)
	}
	switch {
	case namespace == "" && remove:
		w.policy.SetClusterRoleBinding(name, nil)
	case namespace == "":
		w.policy.SetClusterRoleBinding(name, &rbacv1.ClusterRoleBinding{
			ObjectMeta: meta, RoleRef: ref, Subjects: binding.Subjects,
		})
	case remove:
		w.policy.SetRoleBinding(key, nil)
	default:
		w.policy.SetRoleBinding(key, &binding)
	}
}

// rulesOf returns all rules of a user in a namespace, by linear search.
func (w *world) rulesOf(who user.Info, namespace string) []rbacv1.PolicyRule {
	var held []rbacv1.PolicyRule
	for _, b := range w.bindings {
		if b.Namespace != "" && b.Namespace != namespace {
			continue
		}
		for _, s := range b.Subjects {
			home := s.Namespace
			if home == "" {
				home = b.Namespace
			}
			is := s.Kind == "User" && s.Name == who.GetName() ||
				s.Kind == "ServiceAccount" && home != "" && who.GetName() == "system:serviceaccount:"+home+":"+s.Name
			for _, group := range who.GetGroups() {
				is = is || s.Kind == "Group" && s.Name == group
			}
			if !is {
				continue
			}
			roleKey := "/" + b.RoleRef.Name
			if b.RoleRef.Kind == "Role" {
				roleKey = b.Namespace + roleKey
			}
			held = append(held, w.roles[roleKey]...)
		}
	}
	return held
}

func randomRequest(r *rand.Rand) *authorizer.AttributesRecord {
	who := &user.DefaultInfo{Name: pick(r, users), Groups: some(r, groups, 0)}
	if r.IntN(5) == 0 {
		return &authorizer.AttributesRecord{
			User: who, Verb: pick(r, verbs[:3]), Path: pick(r, []string{"/healthz", "/healthz/a", "/metrics", "/apix", "/"}),
		}
	}
	request := &authorizer.AttributesRecord{
		User: who, Verb: pick(r, verbs[:3]), Namespace: pick(r, namespaces), APIGroup: pick(r, apiGroups[:2]),
		Resource: pick(r, []string{"pods", "deployments", "pods/log"}), Subresource: pick(r, []string{"", "log", "scale"}),
		ResourceRequest: true,
	}
	if r.IntN(2) == 0 {
		request.Name = pick(r, objects)
	}
	return request
}

// asRule returns the rule that allows exactly the request.
func asRule(a *authorizer.AttributesRecord) rbacv1.PolicyRule {
	if !a.ResourceRequest {
		return rbacv1.PolicyRule{Verbs: []string{a.Verb}, NonResourceURLs: []string{a.Path}}
	}
	resource := a.Resource
	if a.Subresource != "" {
		resource += "/" + a.Subresource
	}
	rule := rbacv1.PolicyRule{Verbs: []string{a.Verb}, APIGroups: []string{a.APIGroup}, Resources: []string{resource}}
	if a.Name != "" {
		rule.ResourceNames = []string{a.Name}
	}
	return rule
}

// TestDecisionsMatchTheRulesHeld changes random objects and compares each decision with upstream's definition of what
// a set of rules covers.
func TestDecisionsMatchTheRulesHeld(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	allowed := 0
	for range 40 {
		w := newWorld()
		for range 60 {
			w.change(r)
			for range 20 {
				a := randomRequest(r)
				rules := w.rulesOf(a.User, a.Namespace)
				want, _ := validation.Covers(rules, []rbacv1.PolicyRule{asRule(a)})
				if a.ResourceRequest && a.Resource == "pods/log" && a.Subresource != "" {
					continue // Covers takes a resource apart at its first slash
				}
				decision, reason, err := w.policy.Authorize(t.Context(), a)
				if err != nil {
					t.Fatal(err)
				}
				if got := decision == authorizer.DecisionAllow; got != want {
					t.Fatalf("%+v: allowed %v (%s), want %v by %v", a, got, reason, want, rules)
				}
				if want {
					allowed++
				}
			}
		}
	}
	if allowed < 1000 {
		t.Errorf("only %d requests were allowed, too few to be meaningful", allowed)
	}
}

func TestReasons(t *testing.T) {
	p := New()
	bindTo := func(kind, name string, subjects ...rbacv1.Subject) *rbacv1.RoleBinding {
		return &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b"},
			RoleRef:    rbacv1.RoleRef{Kind: kind, Name: name}, Subjects: subjects,
		}
	}
	request := &authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "system:serviceaccount:a:builder"}, Verb: "get", Resource: "pods",
		Namespace: "a", ResourceRequest: true,
	}
	expect := func(decision authorizer.Decision, reason string) {
		t.Helper()
		got, why, err := p.Authorize(t.Context(), request)
		if got != decision || why != reason || err != nil {
			t.Errorf("got %v %q %v, want %v %q", got, why, err, decision, reason)
		}
	}
	expect(authorizer.DecisionNoOpinion, "")
	p.SetRoleBinding("a/b", bindTo("Role", "r", rbacv1.Subject{Kind: "User", Name: "x"}, rbacv1.Subject{
		Kind: "ServiceAccount", Name: "builder",
	}))
	expect(authorizer.DecisionNoOpinion, `RBAC: role.rbac.authorization.k8s.io "r" not found`)
	p.SetRole("a/r", &rbacv1.Role{
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"*"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	})
	expect(authorizer.DecisionAllow, `RBAC: allowed by RoleBinding "b/a" of Role "r" to ServiceAccount "builder/a"`)
	p.SetRoleBinding("a/b", bindTo("ClusterRole", "missing", rbacv1.Subject{Kind: "ServiceAccount", Name: "builder"}))
	expect(authorizer.DecisionNoOpinion, `RBAC: clusterrole.rbac.authorization.k8s.io "missing" not found`)
	p.SetRoleBinding("a/b", nil)
	expect(authorizer.DecisionNoOpinion, "")
}

// TestConcurrentUse authorizes while objects change: decisions must reflect a change after it has returned.
func TestConcurrentUse(t *testing.T) {
	p := New()
	p.SetClusterRole("view", &rbacv1.ClusterRole{
		Rules: []rbacv1.PolicyRule{{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	})
	var wg sync.WaitGroup
	for worker := range 4 {
		wg.Go(func() {
			name := fmt.Sprintf("user%d", worker)
			binding := &rbacv1.ClusterRoleBinding{
				ObjectMeta: metav1.ObjectMeta{Name: name}, RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "view"},
				Subjects: []rbacv1.Subject{{Kind: "User", Name: name}},
			}
			request := &authorizer.AttributesRecord{
				User: &user.DefaultInfo{Name: name}, Verb: "get", Resource: "pods", ResourceRequest: true,
			}
			for i := range 200 {
				want := authorizer.DecisionNoOpinion
				if i%2 == 0 {
					p.SetClusterRoleBinding(name, binding)
					want = authorizer.DecisionAllow
				} else {
					p.SetClusterRoleBinding(name, nil)
				}
				if got, _, _ := p.Authorize(t.Context(), request); got != want {
					t.Errorf("%s, change %d: %v, want %v", name, i, got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}
