package filters

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// lottery is an authorizer whose decisions are random but stable per request.
type lottery struct{ seed, chance uint64 }

func (l lottery) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, l.seed, a.GetVerb(), a.IsReadOnly(), a.GetAPIGroup(), a.GetAPIVersion(), a.GetResource(),
		a.GetSubresource(), a.GetNamespace(), a.GetName(), a.GetPath(), a.IsResourceRequest(),
		a.GetUser().GetName(), a.GetUser().GetExtra())
	draw := h.Sum64()
	switch {
	case draw%100 < l.chance:
		return authorizer.DecisionAllow, "", nil
	case draw%7 == 0:
		return authorizer.DecisionNoOpinion, "unlucky", errors.New("broken")
	case draw%7 == 1:
		return authorizer.DecisionDeny, "", errors.New("broken")
	}
	return authorizer.DecisionNoOpinion, "unlucky", nil
}

func randomImpersonation(r *rand.Rand) http.Header {
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	headers := http.Header{}
	if r.IntN(8) > 0 {
		headers.Set("Impersonate-User", pick(
			"bob", "system:anonymous", "system:serviceaccount:a:b", "system:serviceaccount:a:",
			"system:node:n1", "system:node:n2", "system:node:_", "system:node:", "system:node:n1 ",
			"SYSTEM:NODE:n1", "system:node:n1\x00", "system:masters", "*", "bob\u202e", "system:serviceaccount:a:b:c",
			"system:serviceaccount:A:b", "system:serviceaccount:kube-system:agent", "system:apiserver",
			"system:kube-controller-manager",
		))
		if r.IntN(8) == 0 { // only the first counts
			headers.Add("Impersonate-User", pick("bob", "system:node:n1", "system:serviceaccount:a:b"))
		}
	}
	for range r.IntN(7) * r.IntN(2) * r.IntN(2) {
		headers.Add("Impersonate-Group",
			pick("dev", "ops", "system:authenticated", "system:unauthenticated", "system:masters", "",
				"System:Masters", "system:masters ", "system:masters,dev", "system:nodes", "system:serviceaccounts", "*"))
	}
	if r.IntN(4) == 0 {
		headers.Set("Impersonate-Uid", pick("7", "*", " "))
	}
	if r.IntN(3) == 0 {
		key := "Impersonate-Extra-" +
			pick("Acme.com%2fproject", "Scope", "X%2f%2fy", "%53cope", "%zz", "", "%2a", "*", "%00", "%c3%9f", "Ss%c5%bf",
				"Authentication.kubernetes.io%2fnode-Name", "Authentication.kubernetes.io%2fassociated-Node-Keys")
		for range 1 + r.IntN(6) {
			headers.Add(key, pick("one", "two", "three", "four", ""))
		}
	}
	if r.IntN(8) == 0 {
		headers.Set("Impersonate-Other", "x")
	}
	return headers
}

// requestors are the impersonating users.
var requestors = []*user.DefaultInfo{
	{Name: "alice", Groups: []string{"dev"}},
	{Name: "bert"},
	{Name: "system:serviceaccount:kube-system:agent", Extra: map[string][]string{
		"authentication.kubernetes.io/node-name": {"n1"}, "x": {"y"},
	}},
}

// impersonationPair has the filters of both servers, which remember the modes that succeeded.
type impersonationPair struct {
	theirs, ours http.Handler
	became       user.Info // as the handler behind either saw it
	left         http.Header
	sent         int // number of compared requests
}

func newImpersonationPair(a authorizer.UnconditionalAuthorizer, constrained bool) *impersonationPair {
	p := &impersonationPair{}
	next := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		p.became, _ = upstream.UserFrom(r.Context())
		p.left = r.Header
	})
	codecs := scheme.Codecs.WithoutConversion()
	p.theirs = impersonation.WithImpersonation(next, a, codecs)
	if constrained {
		p.theirs = impersonation.WithConstrainedImpersonation(next, a, codecs)
	}
	p.ours = newImpersonate(next, Options{
		Authorizer: a, ConstrainedImpersonation: constrained, Clock: clock.RealClock{},
		Metrics: NewMetrics(prometheus.NewRegistry(), &resource.CatalogHolder{}),
	})
	return p
}

// impersonationOutcome is the result of one request.
type impersonationOutcome struct {
	code int
	body string
	user user.DefaultInfo
	left http.Header
}

func (p *impersonationPair) send(handler http.Handler, r *http.Request, headers http.Header) impersonationOutcome {
	r.Header = headers.Clone()
	p.became, p.left = nil, nil
	w := httptest.NewRecorder()
	handler.ServeHTTP(w, r)
	outcome := impersonationOutcome{code: w.Code, body: w.Body.String(), left: p.left}
	if p.became != nil {
		outcome.user = user.DefaultInfo{
			Name: p.became.GetName(), UID: p.became.GetUID(),
			Groups: slices.Clone(p.became.GetGroups()), Extra: p.became.GetExtra(),
		}
		if len(outcome.user.Extra) == 0 {
			outcome.user.Extra = nil
		}
	}
	return outcome
}

// impersonatingRequests are the requests that users send while they impersonate others: a read, a write, a stream that
// is opened with GET, a request of a custom resource, and one that is not of a resource.
var impersonatingRequests = []struct{ method, path string }{
	{"GET", "/api/v1/namespaces/a/pods/x"}, {"DELETE", "/api/v1/namespaces/a/pods"}, {
		"GET", "/api/v1/namespaces/a/pods/x/exec?command=id",
	},
	{"GET", "/apis/example.com/v1/widgets?watch=true"}, {"POST", "/metrics"}, {
		"GET", "/api/v1/namespaces/a/pods/x/proxy/%2e%2e/y",
	},
}

var requestInfos = upstream.RequestInfoFactory{
	APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
}

// compare sends one request through both filters and returns the impersonated user, if any.
func (p *impersonationPair) compare(t *testing.T, by *user.DefaultInfo, headers http.Header, ordered bool) string {
	t.Helper()
	sent := impersonatingRequests[p.sent%len(impersonatingRequests)]
	p.sent++
	r := httptest.NewRequest(sent.method, sent.path, nil)
	info, err := requestInfos.NewRequestInfo(r)
	if err != nil {
		t.Fatal(err)
	}
	want := p.send(p.theirs, r.WithContext(upstream.WithRequestInfo(upstream.WithUser(t.Context(), by), info)), headers)
	record := request.Begin(r, time.Time{}, logr.Discard())
	if err := record.Resolve(sent.method); err != nil {
		t.Fatal(err)
	}
	record.User = by
	got := p.send(p.ours, r.WithContext(record), headers)
	if !ordered { // kube-apiserver goes through several extra headers in any order
		want.body, got.body = "", ""
		for _, extra := range []map[string][]string{want.user.Extra, got.user.Extra} {
			for _, values := range extra {
				slices.Sort(values)
			}
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%v by %v, %v\n got %+v\nwant %+v", headers, by, sent, got, want)
	}
	return got.user.Name
}

// TestImpersonateLikeUpstream compares users and errors with kube-apiserver's. It sends sequences of requests, because
// earlier requests of a user decide which mode is tried first.
func TestImpersonateLikeUpstream(t *testing.T) {
	for _, constrained := range []bool{true, false} {
		t.Run(fmt.Sprintf("constrained=%t", constrained), func(t *testing.T) {
			r := rand.New(rand.NewPCG(3, 4))
			allowed := 0
			for sequence := range uint64(40) {
				pair := newImpersonationPair(lottery{seed: sequence, chance: 40 + sequence%4*18}, constrained)
				for range 100 {
					by, headers := requestors[r.IntN(len(requestors))], randomImpersonation(r)
					if name := pair.compare(t, by, headers, true); name != "" && name != by.Name {
						allowed++
					}
				}
			}
			if allowed < 500 {
				t.Errorf("only %d impersonations succeeded, too few to be meaningful", allowed)
			}
		})
	}
}

// constrainedVerbs allows everything but the verb "impersonate" of the legacy mode.
type constrainedVerbs struct{}

func (constrainedVerbs) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "impersonate" {
		return authorizer.DecisionNoOpinion, "", nil
	}
	return authorizer.DecisionAllow, "", nil
}

// TestConstrainedImpersonationDoesNotEscalate lets users with all constrained permissions try to gain what these must
// not give: the group system:masters, and the groups of nodes and service accounts under other names.
func TestConstrainedImpersonationDoesNotEscalate(t *testing.T) {
	r, pair, allowed := rand.New(rand.NewPCG(5, 6)), newImpersonationPair(constrainedVerbs{}, true), 0
	for range 5000 {
		by, headers := requestors[r.IntN(len(requestors))], randomImpersonation(r)
		name := pair.compare(t, by, headers, true)
		if name == "" || name == by.Name {
			continue
		}
		allowed++
		groups := pair.became.GetGroups()
		switch {
		case slices.Contains(groups, user.SystemPrivilegedGroup):
			t.Errorf("%v: became a member of %s", headers, user.SystemPrivilegedGroup)
		case isNode(name) && !slices.Equal(groups, []string{user.NodesGroup, user.AllAuthenticated}):
			t.Errorf("%v: a node with the groups %v", headers, groups)
		case (isNode(name) || isServiceAccount(name)) && (len(pair.became.GetExtra()) > 0 || pair.became.GetUID() != ""):
			t.Errorf("%v: %s with the extra %v and the UID %q", headers, name, pair.became.GetExtra(), pair.became.GetUID())
		}
		if hasImpersonation(pair.left) && headers.Get("Impersonate-Other") == "" {
			t.Errorf("%v: the next handler sees %v", headers, pair.left)
		}
	}
	if allowed < 500 {
		t.Errorf("only %d impersonations succeeded, too few to be meaningful", allowed)
	}
}

// FuzzImpersonationLikeUpstream compares both filters for arbitrary headers.
func FuzzImpersonationLikeUpstream(f *testing.F) {
	f.Add("Impersonate-User: bob\nImpersonate-Group: dev\nImpersonate-Extra-Acme.com%2fProject: x", uint64(1), true)
	f.Add("Impersonate-User: system:serviceaccount:a:b\nImpersonate-Uid: 1", uint64(2), true)
	f.Add("Impersonate-User: system:node:n1", uint64(3), true)
	f.Add("Impersonate-User: bob\nImpersonate-Extra-%53cope: x\nImpersonate-Extra-Scope: y", uint64(4), true)
	f.Add("Impersonate-User: bob"+strings.Repeat("\nImpersonate-Group: dev", 4), uint64(5), true)
	f.Add("Impersonate-Group: dev", uint64(6), false)
	f.Add("impersonate-user: bob\nImpersonate-Extra-: x\nImpersonate-Extra-%zz: y\nImpersonate-: z", uint64(7), false)
	f.Add("Impersonate-User:\nImpersonate-User: bob", uint64(8), false)
	f.Fuzz(func(t *testing.T, text string, seed uint64, constrained bool) {
		headers, err := textproto.NewReader(bufio.NewReader(strings.NewReader(text + "\n\n"))).ReadMIMEHeader()
		if err != nil {
			t.Skip()
		}
		extra := 0
		for name := range headers {
			if strings.HasPrefix(name, "Impersonate-Extra-") {
				extra++
			}
		}
		pair := newImpersonationPair(lottery{seed: seed, chance: seed % 101}, constrained)
		for _, by := range requestors {
			pair.compare(t, by, http.Header(headers), extra <= 1)
		}
	})
}

// onlyBob allows impersonation of bob in the legacy mode.
type onlyBob struct{}

func (onlyBob) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	if a.GetVerb() == "impersonate" && a.GetName() == "bob" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

// TestRefusalDependsOnTheLastMode checks that the last successful mode is remembered per requestor.
func TestRefusalDependsOnTheLastMode(t *testing.T) {
	pair := newImpersonationPair(onlyBob{}, true)
	refusal := func(by *user.DefaultInfo) string {
		r := httptest.NewRequest("GET", "/version", nil)
		record := request.Begin(r, time.Time{}, logr.Discard())
		record.User = by
		if err := record.Resolve("GET"); err != nil {
			t.Fatal(err)
		}
		return pair.send(pair.ours, r.WithContext(record), http.Header{"Impersonate-User": {"carol"}}).body
	}
	pair.compare(t, requestors[0], http.Header{"Impersonate-User": {"bob"}}, true)
	if body := refusal(requestors[0]); !strings.Contains(body, "cannot impersonate resource") {
		t.Errorf("after impersonation in the legacy mode: %s", body)
	}
	if body := refusal(requestors[1]); !strings.Contains(body, "cannot impersonate-on:user-info:get path") {
		t.Errorf("of another user: %s", body)
	}
}
