package filters

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	upstream "k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/authorization/rbac"
	"quorate.dev/apiserver/request"
)

// mayImpersonate returns an RBAC policy that lets alice impersonate in the mode of the given name, and read pods while
// she does.
func mayImpersonate(mode string) *rbac.Policy {
	verbs, group := []string{"impersonate"}, ""
	if mode != legacyMode {
		verbs, group = []string{verbOfMode(mode), "impersonate-on:" + mode + ":get"}, "authentication.k8s.io"
	}
	policy := rbac.New()
	policy.SetClusterRole("impersonator", &rbacv1.ClusterRole{Rules: []rbacv1.PolicyRule{
		{Verbs: verbs, APIGroups: []string{group}, Resources: []string{"users", "groups"}},
		{Verbs: verbs, APIGroups: []string{""}, Resources: []string{"pods"}},
	}})
	policy.SetClusterRoleBinding("alice", &rbacv1.ClusterRoleBinding{
		RoleRef:  rbacv1.RoleRef{Kind: "ClusterRole", Name: "impersonator"},
		Subjects: []rbacv1.Subject{{Kind: "User", Name: "alice"}},
	})
	return policy
}

// BenchmarkImpersonate compares the cost of the filter with upstream's: of requests without impersonation, of one
// request that a client repeats, and of requests for different objects, which upstream's cache of decisions does not
// have.
func BenchmarkImpersonate(b *testing.B) {
	who := http.Header{"Impersonate-User": {"bob"}, "Impersonate-Group": {"dev", "ops"}}
	for _, c := range []struct {
		name, mode string
		headers    http.Header
		objects    int
	}{
		{"none", legacyMode, http.Header{}, 1},
		{"legacy", legacyMode, who, 1},
		{"user-info repeated", "user-info", who, 1},
		{"user-info different", "user-info", who, 100_000},
	} {
		pair := newImpersonationPair(mayImpersonate(c.mode), true)
		names := make([]string, c.objects)
		for i := range names {
			names[i] = fmt.Sprintf("pod-%d", i)
		}
		r := httptest.NewRequest("GET", "/api/v1/namespaces/a/pods/x", nil)
		run := func(name string, handler http.Handler, r *http.Request, info *string, reset func()) {
			sent := 0
			b.Run(c.name+"/"+name, func(b *testing.B) {
				b.ReportAllocs()
				for ; b.Loop(); sent++ {
					clear(r.Header)
					for header, values := range c.headers {
						r.Header[header] = values
					}
					*info = names[sent%len(names)]
					reset()
					pair.became = nil
					handler.ServeHTTP(discard{http.Header{}}, r)
					if pair.left == nil {
						b.Fatal("the request is refused")
					}
				}
			})
		}
		alice := &user.DefaultInfo{Name: "alice", Groups: []string{user.AllAuthenticated}}
		record := request.Begin(r, time.Time{}, logr.Discard())
		if err := record.Resolve("GET"); err != nil {
			b.Fatal(err)
		}
		run("here", pair.ours, r.WithContext(record), &record.Info.Name, func() { record.User = alice })
		info, err := requestInfos.NewRequestInfo(r)
		if err != nil {
			b.Fatal(err)
		}
		ctx := upstream.WithRequestInfo(upstream.WithUser(b.Context(), alice), info)
		run("upstream", pair.theirs, r.WithContext(ctx), &info.Name, func() {})
	}
}
