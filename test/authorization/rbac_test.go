// Package authorization compares the RBAC decisions of this server with those of kube-apiserver's own authorizer.
package authorization

import (
	"context"
	"fmt"
	"sort"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	upstream "k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"quorate.dev/apiserver/authorization/rbac"
)

// bootstrap serves the bootstrap policy to upstream's authorizer.
type bootstrap struct {
	clusterRoles        map[string]*rbacv1.ClusterRole
	clusterRoleBindings []*rbacv1.ClusterRoleBinding
	roles               map[string]*rbacv1.Role
	roleBindings        map[string][]*rbacv1.RoleBinding
}

func (b *bootstrap) GetRole(_ context.Context, namespace, name string) (*rbacv1.Role, error) {
	if role := b.roles[namespace+"/"+name]; role != nil {
		return role, nil
	}
	return nil, apierrors.NewNotFound(rbacv1.Resource("role"), name)
}

func (b *bootstrap) GetClusterRole(_ context.Context, name string) (*rbacv1.ClusterRole, error) {
	if role := b.clusterRoles[name]; role != nil {
		return role, nil
	}
	return nil, apierrors.NewNotFound(rbacv1.Resource("clusterrole"), name)
}

func (b *bootstrap) ListRoleBindings(_ context.Context, namespace string) ([]*rbacv1.RoleBinding, error) {
	return b.roleBindings[namespace], nil
}

func (b *bootstrap) ListClusterRoleBindings(context.Context) ([]*rbacv1.ClusterRoleBinding, error) {
	return b.clusterRoleBindings, nil
}

// load loads the bootstrap policy, and some bindings beyond it, into both authorizers.
func load() (*rbac.Policy, *bootstrap) {
	policy := rbac.New()
	b := &bootstrap{
		clusterRoles: map[string]*rbacv1.ClusterRole{}, roles: map[string]*rbacv1.Role{},
		roleBindings: map[string][]*rbacv1.RoleBinding{},
	}
	for _, list := range [][]rbacv1.ClusterRole{bootstrappolicy.ClusterRoles(), bootstrappolicy.ControllerRoles()} {
		for i := range list {
			b.clusterRoles[list[i].Name] = &list[i]
			policy.SetClusterRole(list[i].Name, &list[i])
		}
	}
	bindings := append(bootstrappolicy.ClusterRoleBindings(), bootstrappolicy.ControllerRoleBindings()...)
	broken := bindings[0].DeepCopy()
	broken.Name, broken.RoleRef.Name, broken.Subjects =
		"broken", "missing", []rbacv1.Subject{{Kind: "User", Name: "stranger"}}
	for i := range append(bindings, *broken) {
		binding := append(bindings, *broken)[i].DeepCopy()
		b.clusterRoleBindings = append(b.clusterRoleBindings, binding)
		policy.SetClusterRoleBinding(binding.Name, binding)
	}
	for namespace, list := range bootstrappolicy.NamespaceRoles() {
		for i := range list {
			b.roles[namespace+"/"+list[i].Name] = &list[i]
			policy.SetRole(namespace+"/"+list[i].Name, &list[i])
		}
	}
	for namespace, list := range bootstrappolicy.NamespaceRoleBindings() {
		for i := range list {
			b.roleBindings[namespace] = append(b.roleBindings[namespace], &list[i])
			policy.SetRoleBinding(namespace+"/"+list[i].Name, &list[i])
		}
	}
	return policy, b
}

// requests returns requests for everything in the policy, and for some things outside, by every subject in the policy.
func requests(b *bootstrap) []*authorizer.AttributesRecord {
	subjects := map[string]user.Info{}
	for _, binding := range b.clusterRoleBindings {
		for _, s := range binding.Subjects {
			who := &user.DefaultInfo{Name: s.Name}
			switch s.Kind {
			case "Group":
				who = &user.DefaultInfo{Name: "member", Groups: []string{s.Name, "system:authenticated"}}
			case "ServiceAccount":
				who = &user.DefaultInfo{
					Name: "system:serviceaccount:" + s.Namespace + ":" + s.Name, Groups: []string{"system:serviceaccounts"},
				}
			}
			subjects[who.Name+fmt.Sprint(who.Groups)] = who
		}
	}
	things := map[string]authorizer.AttributesRecord{}
	for _, role := range b.clusterRoles {
		for _, rule := range role.Rules {
			for _, verb := range append(rule.Verbs, "impersonate") {
				for _, path := range rule.NonResourceURLs {
					things[verb+path] = authorizer.AttributesRecord{Verb: verb, Path: strings.ReplaceAll(path, "*", "x")}
				}
				for _, group := range rule.APIGroups {
					for _, resource := range rule.Resources {
						resource, subresource, _ := strings.Cut(resource, "/")
						things[verb+group+resource+subresource] = authorizer.AttributesRecord{
							Verb: verb, APIGroup: group, Resource: resource, Subresource: subresource, ResourceRequest: true,
						}
					}
				}
			}
		}
	}
	var all []*authorizer.AttributesRecord
	for _, who := range subjects {
		for _, thing := range things {
			for _, namespace := range []string{"", "kube-system"} {
				a := thing
				a.User, a.Namespace = who, namespace
				all = append(all, &a)
			}
		}
	}
	return all
}

func TestBootstrapPolicyDecisions(t *testing.T) {
	policy, b := load()
	theirs := upstream.New(b, b, b, b)
	allowed, ctx := 0, t.Context()
	all := requests(b)
	for _, request := range all {
		want, wantReason, _ := theirs.Authorize(ctx, request)
		got, reason, err := policy.Authorize(ctx, request)
		if got != want || err != nil {
			t.Fatalf("%+v of %+v: got %v %q %v, want %v %q", request, request.User, got, reason, err, want, wantReason)
		}
		if want != authorizer.DecisionAllow && reason != wantReason {
			t.Fatalf("%+v of %+v: reason %q, want %q", request, request.User, reason, wantReason)
		}
		if want == authorizer.DecisionAllow {
			allowed++
		}
	}
	t.Logf("%d requests, %d allowed", len(all), allowed)
	if allowed == 0 || allowed == len(all) {
		t.Error("the requests prove nothing")
	}
}

func TestBootstrapPolicyRules(t *testing.T) {
	policy, b := load()
	theirs := upstream.New(b, b, b, b)
	for _, who := range []user.Info{
		&user.DefaultInfo{Name: "system:kube-controller-manager", Groups: []string{"system:authenticated"}},
		&user.DefaultInfo{Name: "stranger"},
	} {
		wantResources, wantPaths, _, wantErr := theirs.RulesFor(t.Context(), who, "kube-system")
		resources, paths, _, err := policy.RulesFor(t.Context(), who, "kube-system")
		if fmt.Sprint(err) != fmt.Sprint(wantErr) {
			t.Errorf("%s: error %v, want %v", who.GetName(), err, wantErr)
		}
		if got, want := render(resources, paths), render(wantResources, wantPaths); got != want {
			t.Errorf("%s\n got %s\nwant %s", who.GetName(), got, want)
		}
	}
}

// render returns rules in a form in which their order does not matter.
func render(resources []authorizer.ResourceRuleInfo, paths []authorizer.NonResourceRuleInfo) string {
	var lines []string
	for _, r := range resources {
		lines = append(lines, fmt.Sprint(r.GetVerbs(), r.GetAPIGroups(), r.GetResources(), r.GetResourceNames()))
	}
	for _, p := range paths {
		lines = append(lines, fmt.Sprint(p.GetVerbs(), p.GetNonResourceURLs()))
	}
	sort.Strings(lines)
	return strings.Join(lines, "\n")
}

// BenchmarkAuthorize compares the cost of a decision with upstream's, with and without bindings of other users.
func BenchmarkAuthorize(b *testing.B) {
	request := &authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "user0", Groups: []string{"dev", "system:authenticated"}}, Verb: "get", Namespace: "a",
		Resource: "pods", Name: "x", ResourceRequest: true,
	}
	view := &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{{
		Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods", "services"},
	}}}
	for _, others := range []int{0, 10_000} {
		policy, stored := load()
		policy.SetClusterRole("view-pods", view)
		stored.clusterRoles["view-pods"] = view
		for i := range others + 1 {
			binding := &rbacv1.ClusterRoleBinding{RoleRef: rbacv1.RoleRef{Kind: "ClusterRole", Name: "view-pods"}}
			binding.Name = fmt.Sprintf("user%d", others-i)
			binding.Subjects = []rbacv1.Subject{{Kind: "User", Name: binding.Name}}
			policy.SetClusterRoleBinding(binding.Name, binding)
			stored.clusterRoleBindings = append(stored.clusterRoleBindings, binding)
		}
		for name, decide := range map[string]authorizer.UnconditionalAuthorizer{
			"here": policy, "upstream": upstream.New(stored, stored, stored, stored),
		} {
			b.Run(fmt.Sprintf("others=%d/%s", others, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if d, _, _ := decide.Authorize(b.Context(), request); d != authorizer.DecisionAllow {
						b.Fatal(d)
					}
				}
			})
		}
	}
}
