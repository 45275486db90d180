package abac_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"quorate.dev/apiserver/authorization/abac"
)

// lines is a policy file in which alice may read pods of one namespace, the group admins may do everything, and all
// authenticated users may read /healthz.
const lines = `
# comments and empty lines are ignored
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"alice","namespace":"team","resource":"pods","readonly":true}}

{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"group":"admins","namespace":"*","resource":"*","apiGroup":"*","nonResourcePath":"*"}}
{"apiVersion":"abac.authorization.kubernetes.io/v1beta1","kind":"Policy","spec":{"user":"*","namespace":"*","nonResourcePath":"/healthz","readonly":true}}
`

func load(t *testing.T, content string) (abac.Policy, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.jsonl")
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return abac.Load(file)
}

func TestAuthorize(t *testing.T) {
	t.Parallel()
	policy, err := load(t, lines)
	if err != nil {
		t.Fatal(err)
	}
	alice := &user.DefaultInfo{Name: "alice", Groups: []string{user.AllAuthenticated}}
	root, unknown := &user.DefaultInfo{Name: "root", Groups: []string{"admins"}}, &user.DefaultInfo{Name: user.Anonymous}
	for name, test := range map[string]struct {
		request authorizer.AttributesRecord
		allowed bool
	}{
		"alice gets a pod":               {pod(alice, "get", "team"), true},
		"alice watches pods":             {pod(alice, "watch", "team"), true},
		"alice deletes a pod":            {pod(alice, "delete", "team"), false},
		"alice gets a pod of others":     {pod(alice, "get", "other"), false},
		"an administrator deletes a pod": {pod(root, "delete", "other"), true},
		"alice gets the health":          {authorizer.AttributesRecord{User: alice, Verb: "get", Path: "/healthz"}, true},
		"an anonymous user gets the health": {
			authorizer.AttributesRecord{User: unknown, Verb: "get", Path: "/healthz"}, false,
		},
		"alice gets the metrics":            {authorizer.AttributesRecord{User: alice, Verb: "get", Path: "/metrics"}, false},
		"an administrator gets the metrics": {authorizer.AttributesRecord{User: root, Verb: "get", Path: "/metrics"}, true},
	} {
		decision, _, err := policy.Authorize(t.Context(), test.request)
		// A policy without a matching line has no opinion, so that other authorization modes decide.
		want := authorizer.DecisionNoOpinion
		if test.allowed {
			want = authorizer.DecisionAllow
		}
		if err != nil || decision != want {
			t.Errorf("%s: got %v, %v, want %v", name, decision, err, want)
		}
	}
}

func pod(u user.Info, verb, namespace string) authorizer.AttributesRecord {
	return authorizer.AttributesRecord{User: u, Verb: verb, Namespace: namespace, Resource: "pods", ResourceRequest: true}
}

func TestRulesFor(t *testing.T) {
	t.Parallel()
	policy, err := load(t, lines)
	if err != nil {
		t.Fatal(err)
	}
	resources, paths, incomplete, err := policy.RulesFor(t.Context(),
		&user.DefaultInfo{Name: "alice", Groups: []string{user.AllAuthenticated}}, "team")
	if err != nil || incomplete || len(resources) != 1 || len(paths) != 1 {
		t.Fatalf("got %d rules for resources, %d for paths, incomplete %t, %v", len(resources), len(paths), incomplete, err)
	}
	got := strings.Join(resources[0].GetVerbs(), " ") + " " + resources[0].GetResources()[0]
	if got != "get list watch pods" {
		t.Errorf("got the rule %q", got)
	}
	if got := paths[0].GetNonResourceURLs(); len(got) != 1 || got[0] != "/healthz" {
		t.Errorf("got the paths %q", got)
	}
}

func TestLoadRejectsFiles(t *testing.T) {
	t.Parallel()
	for name, content := range map[string]string{
		"no JSON":         "alice may read pods",
		"another kind":    `{"apiVersion":"v1","kind":"Pod"}`,
		"another version": `{"apiVersion":"abac.authorization.kubernetes.io/v9","kind":"Policy","spec":{"user":"alice"}}`,
	} {
		if policy, err := load(t, content); err == nil || policy != nil {
			t.Errorf("%s: got %v, want an error and no policy", name, policy)
		}
	}
	if policy, err := abac.Load(filepath.Join(t.TempDir(), "absent")); err == nil || policy != nil {
		t.Errorf("a file that does not exist: got %v", policy)
	}
}
