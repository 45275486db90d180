package permissions

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/release/manifest"
)

const root = "../.."

func objects(t *testing.T) []manifest.Object {
	t.Helper()
	all, err := manifest.ReadAll(root+"/manifests/install.yaml", root+"/manifests/extension.yaml")
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// rules returns the permissions of a role.
func rules(t *testing.T, object manifest.Object) map[Permission]bool {
	t.Helper()
	var role rbacv1.ClusterRole
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &role); err != nil {
		t.Fatal(err)
	}
	found := map[Permission]bool{}
	for _, rule := range role.Rules {
		for _, group := range rule.APIGroups {
			for _, resource := range rule.Resources {
				if group != "" {
					resource += "." + group
				}
				for _, verb := range rule.Verbs {
					found[Permission{role.Kind + " " + role.Name, resource, verb}] = true
				}
			}
		}
	}
	return found
}

// usersRoles are bound by users, not to the operator or API servers.
var usersRoles = []string{"quorate-edit", "quorate-view", "quorate-metrics-reader"}

// TestGranted compares permissions.txt with the roles in the manifests.
func TestGranted(t *testing.T) {
	listed, err := Listed()
	if err != nil {
		t.Fatal(err)
	}
	granted := map[Permission]bool{}
	for _, object := range objects(t) {
		if strings.HasSuffix(object.GetKind(), "Role") && !slices.Contains(usersRoles, object.GetName()) {
			maps.Copy(granted, rules(t, object))
		}
	}
	for p := range granted {
		if listed[p] == "" {
			t.Errorf("no test needs the permission %s; list its test in permissions.txt, or remove it from config/rbac", p)
		}
	}
	for p := range listed {
		if !granted[p] {
			t.Errorf("permissions.txt has %s, which no role grants", p)
		}
	}
}

// TestTestsCheck checks that each test of permissions.txt calls Check, or is named in a reason.
func TestTestsCheck(t *testing.T) {
	listed, err := Listed()
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]bool{}
	for _, test := range listed {
		if !strings.HasPrefix(test, "(") {
			tests[test] = true
		}
	}
	output, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "*_test.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range strings.Fields(string(output)) {
		text, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			continue // deleted, and not committed yet
		}
		for _, function := range strings.Split(string(text), "\nfunc ")[1:] {
			name, body, _ := strings.Cut(function, "(")
			if strings.Contains(body, "permissions.Check(") || strings.Contains(body, ".checkPermissions()") {
				delete(tests, name)
			}
		}
	}
	for test := range tests {
		t.Errorf("%s does not compare its permissions", test)
	}
}

// TestUsersRoles checks that users with the role edit can manage and scale, and that those with the role view can read,
// all resources of all CustomResourceDefinitions, and nothing else.
func TestUsersRoles(t *testing.T) {
	edit, view := map[Permission]bool{}, map[Permission]bool{}
	grant := func(role map[Permission]bool, name, resource string, verbs ...string) {
		for _, verb := range verbs {
			role[Permission{"ClusterRole " + name, resource, verb}] = true
		}
	}
	all := objects(t)
	for _, object := range manifest.OfKind(all, "CustomResourceDefinition") {
		var definition apiextensionsv1.CustomResourceDefinition
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &definition); err != nil {
			t.Fatal(err)
		}
		plural, group := definition.Spec.Names.Plural, "."+definition.Spec.Group
		write, read := []string{"create", "delete", "deletecollection", "get", "list", "patch", "update",
			"watch"}, []string{"get", "list", "watch"}
		grant(edit, "quorate-edit", plural+group, write...)
		grant(view, "quorate-view", plural+group, read...)
		subresources := definition.Spec.Versions[0].Subresources
		if subresources.Scale != nil {
			grant(edit, "quorate-edit", plural+"/scale"+group, "get", "patch", "update")
			grant(view, "quorate-view", plural+"/scale"+group, "get")
		}
		if subresources.Status != nil {
			grant(view, "quorate-view", plural+"/status"+group, "get")
		}
	}
	for name, want := range map[string]map[Permission]bool{"quorate-edit": edit, "quorate-view": view} {
		role, err := manifest.Find(all, "ClusterRole", name)
		if err != nil {
			t.Fatal(err)
		}
		got := rules(t, role)
		for p := range want {
			if !got[p] {
				t.Errorf("missing: %s", p)
			}
		}
		for p := range got {
			if !want[p] {
				t.Errorf("not needed: %s", p)
			}
		}
	}
}

// TestUnused compares a list with an audit log in which a permission is not used, is denied, or is used for nothing
// that exists.
func TestUnused(t *testing.T) {
	const line = `{"verb":"%s","objectRef":{"resource":"%s","subresource":"%s","apiGroup":"%s"},"responseStatus":{"code":%d},` +
		`"annotations":{"authorization.k8s.io/reason":"RBAC: allowed by ClusterRoleBinding \"b\" of ClusterRole \"r\" to ServiceAccount \"a/n\""}}`
	log := strings.Join([]string{
		fmt.Sprintf(line, "get", "pods", "", "", 200), fmt.Sprintf(line, "delete", "pods", "", "", 404),
		fmt.Sprintf(line, "patch", "clusters", "status", "example.com", 200),
		fmt.Sprintf(line, "create", "secrets", "", "", 403),
		`{"verb":"update","objectRef":{"resource":"pods"},"responseStatus":{"code":200},"annotations":{}}`,
	}, "\n")
	file := filepath.Join(t.TempDir(), "audit.log")
	if err := os.WriteFile(file, []byte(log), 0o600); err != nil {
		t.Fatal(err)
	}
	found, err := used(file)
	if err != nil {
		t.Fatal(err)
	}
	role := func(resource, verb string) Permission { return Permission{"ClusterRole r", resource, verb} }
	listed := map[Permission]string{
		role("pods", "get"): "TestA", role("pods", "delete"): "TestA", role("clusters/status.example.com", "patch"): "TestA",
		role("secrets", "create"): "TestA", role("pods", "update"): "TestA", role("pods", "list"): "TestB",
	}
	unused, count := compare(listed, found, "TestA")
	slices.SortFunc(unused, func(a, b Permission) int { return strings.Compare(a.String(), b.String()) })
	if want := []Permission{role("secrets", "create"), role("pods", "update")}; count != 5 || !slices.Equal(unused, want) {
		t.Errorf("%d listed, unused: %v, want %v", count, unused, want)
	}
}
