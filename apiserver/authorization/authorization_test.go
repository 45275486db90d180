package authorization

import (
	"context"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/authorization/rbac"
	"quorate.dev/apiserver/config"
)

func TestModesInOrder(t *testing.T) {
	policy := rbac.New()
	policy.SetClusterRoleBinding("b", &rbacv1.ClusterRoleBinding{
		RoleRef:  rbacv1.RoleRef{Kind: "ClusterRole", Name: "missing"},
		Subjects: []rbacv1.Subject{{Kind: "User", Name: "alice"}},
	})
	alice := &authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "alice"}, Verb: "get", Path: "/x"}
	admin := &authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "root", Groups: []string{user.SystemPrivilegedGroup}}, Verb: "get", Path: "/x",
	}
	for _, c := range []struct {
		modes    string
		request  authorizer.Attributes
		decision authorizer.Decision
		reason   string
	}{
		{"AlwaysAllow", alice, authorizer.DecisionAllow, ""},
		{"AlwaysDeny", alice, authorizer.DecisionNoOpinion, "alwaysdeny: Everything is forbidden."},
		{"AlwaysDeny", admin, authorizer.DecisionAllow, ""},
		{
			"Node,RBAC", alice, authorizer.DecisionNoOpinion,
			`rbac: RBAC: clusterrole.rbac.authorization.k8s.io "missing" not found`,
		},
		{
			"RBAC,AlwaysDeny", alice, authorizer.DecisionNoOpinion,
			"rbac: RBAC: clusterrole.rbac.authorization.k8s.io \"missing\" not found\nalwaysdeny: Everything is forbidden.",
		},
		{"AlwaysDeny,AlwaysAllow", alice, authorizer.DecisionAllow, ""},
	} {
		a, err := newOf(t, strings.Split(c.modes, ","), policy, silent{})
		if err != nil {
			t.Fatal(err)
		}
		if decision, reason, err := a.Authorize(t.Context(), c.request); decision != c.decision ||
			reason != c.reason || err != nil {
			t.Errorf("%s: %v %q %v, want %v %q", c.modes, decision, reason, err, c.decision, c.reason)
		}
	}
}

// newOf returns the authorizer of --authorization-mode.
func newOf(t *testing.T, modes []string, policy, node Mode) (*Authorizer, error) {
	t.Helper()
	configuration, err := Load(config.Authorization{Modes: modes})
	if err != nil {
		t.Fatal(err)
	}
	return New(Options{
		Configuration: configuration, RBAC: policy, Node: node, Clock: clock.RealClock{}, Logger: logr.Discard(),
		Registerer: prometheus.NewRegistry(),
	})
}

// silent is a mode without an opinion.
type silent struct{ AlwaysDeny }

func (silent) Authorize(context.Context, authorizer.Attributes) (authorizer.Decision, string, error) {
	return authorizer.DecisionNoOpinion, "", nil
}

func TestNoUserIsAnError(t *testing.T) {
	a, err := newOf(t, []string{"AlwaysAllow"}, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if decision, _, err := a.Authorize(t.Context(), &authorizer.AttributesRecord{}); err == nil ||
		decision == authorizer.DecisionAllow {
		t.Errorf("%v, %v", decision, err)
	}
}

func TestBadModes(t *testing.T) {
	for _, modes := range [][]string{{"ABAC"}, {"RBAC"}, {"Node"}} { // the latter two without what they require
		if _, err := newOf(t, modes, nil, nil); err == nil {
			t.Errorf("%v accepted", modes)
		}
	}
}
