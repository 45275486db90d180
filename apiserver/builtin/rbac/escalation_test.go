package rbac_test

import (
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	api "k8s.io/kubernetes/pkg/apis/rbac"

	authorization "quorate.dev/apiserver/authorization/rbac"
	"quorate.dev/apiserver/builtin/rbac"
)

// newPolicy allows "reader" to read pods and "binder" to bind any role.
func newPolicy() *authorization.Policy {
	policy := authorization.New()
	grant := func(name string, rule rbacv1.PolicyRule) {
		policy.SetClusterRole(name, &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbacv1.PolicyRule{rule},
		})
		policy.SetClusterRoleBinding(name, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: name},
			Subjects:   []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: name}},
		})
	}
	grant("reader", rbacv1.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{""}, Resources: []string{"pods"}})
	grant("binder", rbacv1.PolicyRule{
		Verbs: []string{"bind", "escalate"}, APIGroups: []string{rbacv1.GroupName},
		Resources: []string{"clusterroles", "roles"},
	})
	grant("admin", rbacv1.PolicyRule{Verbs: []string{"*"}, APIGroups: []string{"*"}, Resources: []string{"*"}})
	return policy
}

func clusterRole(verb string, aggregated bool) *api.ClusterRole {
	role := &api.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "new"},
		Rules:      []api.PolicyRule{{Verbs: []string{verb}, APIGroups: []string{""}, Resources: []string{"pods"}}},
	}
	if aggregated {
		role.AggregationRule = &api.AggregationRule{ClusterRoleSelectors: []metav1.LabelSelector{{}}}
	}
	return role
}

func binding(role string) *api.ClusterRoleBinding {
	return &api.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "new"},
		RoleRef:    api.RoleRef{APIGroup: api.GroupName, Kind: "ClusterRole", Name: role},
	}
}

func TestGuard(t *testing.T) {
	policy := newPolicy()
	guard := rbac.Guard{Authorizer: policy, Rules: policy.Resolver()}
	finalized := clusterRole("delete", false)
	finalized.Finalizers = []string{"example.com/wait"}
	for name, test := range map[string]struct {
		user        string
		groups      []string
		object, old runtime.Object
		refused     bool
	}{
		"role with own rights": {user: "reader", object: clusterRole("get", false)},
		"role with more":       {user: "reader", object: clusterRole("delete", false), refused: true},
		"role with more, by a superuser": {
			user: "root", groups: []string{user.SystemPrivilegedGroup}, object: clusterRole("delete", true),
		},
		"role with more, by who may":    {user: "binder", object: clusterRole("delete", false)},
		"aggregated role":               {user: "reader", object: clusterRole("get", true), refused: true},
		"role loses its finalizer only": {user: "reader", object: clusterRole("delete", false), old: finalized},
		"role loses aggregation": {
			user: "reader", object: clusterRole("get", false), old: clusterRole("get", true), refused: true,
		},
		"binding to a role with own rights":   {user: "reader", object: binding("reader")},
		"binding to a role with more":         {user: "reader", object: binding("admin"), refused: true},
		"binding to a role with more, may":    {user: "binder", object: binding("admin")},
		"binding to a role that is not there": {user: "reader", object: binding("missing"), refused: true},
	} {
		t.Run(name, func(t *testing.T) {
			ctx := request.WithUser(t.Context(), &user.DefaultInfo{Name: test.user, Groups: test.groups})
			ctx = request.WithRequestInfo(ctx, &request.RequestInfo{
				IsResourceRequest: true, APIGroup: api.GroupName, APIVersion: "v1", Resource: "clusterroles",
			})
			err := guard.Check(ctx, "", test.object, test.old)
			if (err != nil) != test.refused {
				t.Errorf("got %v, want rejected: %v", err, test.refused)
			}
			if err != nil && !apierrors.IsForbidden(err) && !apierrors.IsNotFound(err) {
				t.Errorf("not an API status: %v", err)
			}
		})
	}
}
