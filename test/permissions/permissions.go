// Package permissions compares the permissions that the manifests grant with the permissions that the operator uses in
// tests. permissions.txt lists each permission with the test that needs it. TestGranted compares the list with the
// manifests. Each test in the list compares its permissions with the audit log of its API server.
package permissions

import (
	"bufio"
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

//go:embed permissions.txt
var list string

// Permission is a verb on a resource that a role grants.
type Permission struct {
	Role     string // with the kind, as in "ClusterRole quorate-operator"
	Resource string // with its subresource and group, as in apiserverclusters/status.quorate.dev
	Verb     string
}

func (p Permission) String() string { return p.Role + ": " + p.Verb + " " + p.Resource }

// Listed returns the permissions of permissions.txt with their tests, or with a reason if the audit log does not show
// the use of a permission.
func Listed() (map[Permission]string, error) {
	listed := map[Permission]string{}
	role := ""
	for line := range strings.Lines(list) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case len(fields) == 2 && line[0] != ' ':
			role = strings.Join(fields, " ")
		case len(fields) >= 3:
			for _, verb := range strings.Split(fields[1], ",") {
				p := Permission{role, fields[0], verb}
				if listed[p] != "" {
					return nil, fmt.Errorf("%s is listed twice", p)
				}
				listed[p] = strings.Join(fields[2:], " ")
			}
		default:
			return nil, fmt.Errorf("invalid line %q", line)
		}
	}
	return listed, nil
}

// event is the part of an audit event that is read here.
type event struct {
	Verb      string
	ObjectRef *struct {
		Resource, Subresource, APIGroup string
	}
	ResponseStatus *struct{ Code int }
	Annotations    map[string]string
}

// reason is the annotation of requests that RBAC allowed.
var reason = regexp.MustCompile(
	`^RBAC: allowed by (?:Cluster)?RoleBinding "[^"]+" of ((?:Cluster)?Role) "([^"]+)" to ServiceAccount`,
)

// authorized reports whether a request succeeded or did not find its object.
func authorized(code int) bool { return code < 400 || code == http.StatusNotFound }

// used returns the permissions that the requests of an audit log needed.
func used(file string) (map[Permission]bool, error) {
	log, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	found := map[Permission]bool{}
	lines := bufio.NewScanner(log)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e event
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("event %q: %w", lines.Text(), err)
		}
		granted := reason.FindStringSubmatch(e.Annotations["authorization.k8s.io/reason"])
		if granted == nil || e.ObjectRef == nil || e.ResponseStatus == nil || !authorized(e.ResponseStatus.Code) {
			continue
		}
		resource := e.ObjectRef.Resource
		if e.ObjectRef.Subresource != "" {
			resource += "/" + e.ObjectRef.Subresource
		}
		if e.ObjectRef.APIGroup != "" {
			resource += "." + e.ObjectRef.APIGroup
		}
		found[Permission{granted[1] + " " + granted[2], resource, e.Verb}] = true
	}
	return found, lines.Err()
}

// Check fails the test if the audit log does not show the use of a permission that this test has to cover.
func Check(t *testing.T, auditLog string) {
	t.Helper()
	listed, err := Listed()
	if err != nil {
		t.Fatal(err)
	}
	found, err := used(auditLog)
	if err != nil {
		t.Fatal(err)
	}
	unused, count := compare(listed, found, t.Name())
	for _, p := range unused {
		t.Errorf("no request of this test used the permission %s: remove it from config/rbac, or move it to another test "+
			"of test/permissions/permissions.txt", p)
	}
	if count == 0 {
		t.Errorf("permissions.txt has no permission that %s needs", t.Name())
	}
	if testing.Verbose() {
		var names []string
		for p := range found {
			names = append(names, p.String())
		}
		slices.Sort(names)
		t.Logf("permissions in use:\n%s", strings.Join(names, "\n"))
	}
}

// compare returns the permissions of a test that are not in use, and how many are listed.
func compare(listed map[Permission]string, found map[Permission]bool, test string) (unused []Permission, count int) {
	for p, other := range listed {
		if other != test {
			continue
		}
		count++
		if !found[p] {
			unused = append(unused, p)
		}
	}
	return unused, count
}
