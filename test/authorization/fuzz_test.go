package authorization

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	upstream "k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"

	"quorate.dev/apiserver/authorization/rbac"
)

// FuzzDecisionsLikeUpstream changes random objects and makes random requests: this server's index and upstream's
// authorizer decide the same, and list the same rules.
func FuzzDecisionsLikeUpstream(f *testing.F) {
	for seed := range uint64(20) {
		f.Add(randomBytes(seed, 400), "")
	}
	f.Add(randomBytes(20, 400), "x/y /x x* */ * pods/ //")
	f.Fuzz(func(t *testing.T, program []byte, words string) { newWorld(program, words).run(t) })
}

func randomBytes(seed uint64, count int) []byte {
	r := rand.New(rand.NewPCG(seed, seed))
	data := make([]byte, count)
	for i := range data {
		data[i] = byte(r.Uint32())
	}
	return data
}

// TestRandomDecisionsLikeUpstream: the seeds contain enough allowed and enough denied requests.
func TestRandomDecisionsLikeUpstream(t *testing.T) {
	decisions := map[authorizer.Decision]int{}
	for seed := range uint64(500) {
		w := newWorld(randomBytes(seed, 1000), "")
		w.run(t)
		for decision, count := range w.decisions {
			decisions[decision] += count
		}
	}
	if decisions[authorizer.DecisionAllow] < 100 || decisions[authorizer.DecisionNoOpinion] < 100 {
		t.Errorf("the requests prove little: %v", decisions)
	}
}

// words from which objects and requests are made; few, so that they meet.
var (
	userNames  = []string{"alice", "bob", "system:serviceaccount:a:builder", "system:serviceaccount::builder", ""}
	groups     = []string{"dev", "system:authenticated", "alice", ""}
	namespaces = []string{"", "a", "b"}
	roleNames  = []string{"r1", "r2", "r3"}
	verbs      = []string{"get", "*", "list", ""}
	apiGroups  = []string{"", "apps", "*"}
	resources  = []string{"pods", "pods/log", "*/log", "*", "pods/*", "*/*", "", "/"}
	names      = []string{"x", "y", ""}
	paths      = []string{"/healthz", "/healthz/*", "/healthz/x", "*", "/*", "/api*", "/api**", ""}
	kinds      = []string{"User", "User", "Group", "Group", "ServiceAccount", "Pod"}
	roleKinds  = []string{"ClusterRole", "Role", "ClusterRole", "Role", "ClusterRole", "Rule"}
)

// world has the same policy in both authorizers. A program of bytes drives changes and requests.
type world struct {
	program   []byte
	words     []string
	policy    *rbac.Policy
	objects   *bootstrap
	bindings  map[string]rbacv1.RoleBinding // by kind, namespace and name
	decisions map[authorizer.Decision]int
}

func newWorld(program []byte, words string) *world {
	return &world{
		program: program, words: strings.Fields(words), policy: rbac.New(), decisions: map[authorizer.Decision]int{},
		objects:  &bootstrap{clusterRoles: map[string]*rbacv1.ClusterRole{}, roles: map[string]*rbacv1.Role{}},
		bindings: map[string]rbacv1.RoleBinding{},
	}
}

// next takes a number below n from the program; 0 at its end.
func (w *world) next(n int) int {
	if len(w.program) == 0 {
		return 0
	}
	number := int(w.program[0]) % n
	w.program = w.program[1:]
	return number
}

// pick takes one of the words given, or rarely one of the fuzzer's.
func (w *world) pick(from []string) string {
	choice := w.next(len(from) + len(w.words))
	if choice < len(from) {
		return from[choice]
	}
	return w.words[choice-len(from)]
}

// segment takes a word without slashes, which names and namespaces cannot contain.
func (w *world) segment(from []string) string { return strings.ReplaceAll(w.pick(from), "/", "") }

// some takes up to three words, rarely none.
func (w *world) some(from []string) []string {
	var chosen []string
	for range (w.next(8) + 2) / 3 {
		chosen = append(chosen, w.pick(from))
	}
	return chosen
}

// run creates a policy, then alternates requests and changes.
func (w *world) run(t *testing.T) {
	theirs := upstream.New(w.objects, w.objects, w.objects, w.objects)
	for range 8 {
		w.setRole()
		w.setBinding()
	}
	for len(w.program) > 0 && !t.Failed() {
		switch w.next(6) {
		case 0:
			w.setRole()
		case 1:
			w.setBinding()
		case 2:
			w.askForRules(t, theirs)
		default:
			w.ask(t, theirs)
		}
	}
}

func (w *world) setRole() {
	namespace, name := w.segment(namespaces), w.segment(roleNames)
	remove := w.next(4) == 0
	var rules []rbacv1.PolicyRule
	for range w.next(4) {
		rule := rbacv1.PolicyRule{Verbs: w.some(verbs)}
		contents := w.next(8)
		if contents != 0 {
			rule.APIGroups, rule.Resources = w.some(apiGroups), w.some(resources)
		}
		if contents < 2 {
			rule.NonResourceURLs = w.some(paths)
		}
		if contents == 3 {
			rule.ResourceNames = w.some(names)
		}
		rules = append(rules, rule)
	}
	meta, key := metav1.ObjectMeta{Namespace: namespace, Name: name}, namespace+"/"+name
	switch {
	case namespace == "" && remove:
		delete(w.objects.clusterRoles, name)
		w.policy.SetClusterRole(name, nil)
	case namespace == "":
		role := &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}
		w.objects.clusterRoles[name] = role
		w.policy.SetClusterRole(name, role)
	case remove:
		delete(w.objects.roles, key)
		w.policy.SetRole(key, nil)
	default:
		role := &rbacv1.Role{ObjectMeta: meta, Rules: rules}
		w.objects.roles[key] = role
		w.policy.SetRole(key, role)
	}
}

func (w *world) setBinding() {
	binding := rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: w.segment(namespaces), Name: w.segment(roleNames)},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: w.pick(roleKinds), Name: w.segment(roleNames)},
	}
	for range 1 + w.next(3) {
		subject := rbacv1.Subject{Kind: w.pick(kinds), Name: w.pick(append(userNames, "builder"))}
		if subject.Kind == "Group" {
			subject.Name = w.pick(groups)
		}
		subject.Namespace = w.segment(namespaces)
		binding.Subjects = append(binding.Subjects, subject)
	}
	key := binding.Namespace + "/" + binding.Name
	remove := w.next(4) == 0
	w.bindings[key] = binding
	if remove {
		delete(w.bindings, key)
	}
	switch {
	case binding.Namespace == "" && remove:
		w.policy.SetClusterRoleBinding(binding.Name, nil)
	case binding.Namespace == "":
		w.policy.SetClusterRoleBinding(binding.Name, ofCluster(binding))
	case remove:
		w.policy.SetRoleBinding(key, nil)
	default:
		w.policy.SetRoleBinding(key, &binding)
	}
	w.listBindings()
}

func ofCluster(binding rbacv1.RoleBinding) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: binding.ObjectMeta, RoleRef: binding.RoleRef, Subjects: binding.Subjects}
}

// listBindings gives upstream's authorizer the bindings, by name: so this server takes them, too.
func (w *world) listBindings() {
	w.objects.clusterRoleBindings, w.objects.roleBindings = nil, map[string][]*rbacv1.RoleBinding{}
	for _, key := range slices.Sorted(maps.Keys(w.bindings)) {
		binding := w.bindings[key]
		if binding.Namespace == "" {
			w.objects.clusterRoleBindings = append(w.objects.clusterRoleBindings, ofCluster(binding))
			continue
		}
		w.objects.roleBindings[binding.Namespace] = append(w.objects.roleBindings[binding.Namespace], &binding)
	}
}

func (w *world) user() user.Info {
	return &user.DefaultInfo{Name: w.pick(userNames), Groups: w.some(groups)}
}

func (w *world) ask(t *testing.T, theirs *upstream.RBACAuthorizer) {
	request := &authorizer.AttributesRecord{User: w.user(), Verb: w.pick(verbs), Namespace: w.segment(namespaces)}
	if request.ResourceRequest = w.next(3) > 0; request.ResourceRequest {
		request.APIGroup, request.Resource, request.Name = w.pick(apiGroups), w.pick(resources), w.pick(names)
		request.Subresource = w.pick([]string{"", "log", "*"})
	} else {
		request.Path = w.pick(paths)
	}
	want, wantReason, wantErr := theirs.Authorize(t.Context(), request)
	got, reason, err := w.policy.Authorize(t.Context(), request)
	w.decisions[want]++
	if got != want || fmt.Sprint(err) != fmt.Sprint(wantErr) {
		t.Fatalf("%+v of %+v: got %v %q %v, want %v %q %v",
			request, request.User, got, reason, err, want, wantReason, wantErr)
	}
	if want != authorizer.DecisionAllow && reason != wantReason {
		t.Fatalf("%+v of %+v: reason %q, want %q", request, request.User, reason, wantReason)
	}
}

func (w *world) askForRules(t *testing.T, theirs *upstream.RBACAuthorizer) {
	who, namespace := w.user(), w.segment(namespaces)
	wantResources, wantPaths, _, wantErr := theirs.RulesFor(t.Context(), who, namespace)
	resources, paths, _, err := w.policy.RulesFor(t.Context(), who, namespace)
	if fmt.Sprint(err) != fmt.Sprint(wantErr) {
		t.Fatalf("rules of %+v in %q: error %v, want %v", who, namespace, err, wantErr)
	}
	if got, want := render(resources, paths), render(wantResources, wantPaths); got != want {
		t.Fatalf("rules of %+v in %q:\n got %s\nwant %s", who, namespace, got, want)
	}
}
