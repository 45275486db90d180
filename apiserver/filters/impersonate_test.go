package filters

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/endpoints/filters/impersonation"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/client-go/kubernetes/scheme"

	"quorate.dev/apiserver/request"
)

// lottery allows each question, always in the same way, with a chance of its own.
type lottery struct{ seed, chance uint64 }

func (l lottery) Authorize(_ context.Context, a authorizer.Attributes) (authorizer.Decision, string, error) {
	h := fnv.New64a()
	_, _ = fmt.Fprint(h, l.seed, a.GetVerb(), a.GetAPIGroup(), a.GetResource(), a.GetSubresource(), a.GetNamespace(), a.GetName())
	if h.Sum64()%100 < l.chance {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "unlucky", nil
}

func randomImpersonation(r *rand.Rand) http.Header {
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	headers := http.Header{"Accept": {"application/json"}}
	if r.IntN(8) > 0 {
		headers.Set("Impersonate-User", pick("bob", "system:anonymous", "system:serviceaccount:a:b", "system:node:n1", "system:node:n2", "system:node:_"))
	}
	for range r.IntN(3) * r.IntN(2) {
		headers.Add("Impersonate-Group", pick("dev", "ops", "system:authenticated", "system:unauthenticated", "system:masters", ""))
	}
	if r.IntN(4) == 0 {
		headers.Set("Impersonate-Uid", "7")
	}
	if r.IntN(3) == 0 {
		headers.Add("Impersonate-Extra-"+pick("Acme.com%2fproject", "Scope", "X%2f%2fy"), pick("one", "two", ""))
	}
	return headers
}

// TestImpersonateLikeUpstream compares the user that results, or the refusal, with those of kube-apiserver.
func TestImpersonateLikeUpstream(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	requesters := []*user.DefaultInfo{
		{Name: "alice", Groups: []string{"dev"}},
		{Name: "system:serviceaccount:kube-system:agent", Extra: map[string][]string{"authentication.kubernetes.io/node-name": {"n1"}}},
	}
	allowed := 0
	for i := range 5000 {
		a := lottery{seed: uint64(i), chance: 40 + uint64(i%4)*20}
		by, headers := requesters[i%2], randomImpersonation(r)

		var want, got user.Info
		theirs := httptest.NewRecorder()
		theirRequest := httptest.NewRequest("GET", "/api/v1/namespaces/a/pods/x", nil)
		theirRequest.Header = headers.Clone()
		info := &upstream.RequestInfo{IsResourceRequest: true, Verb: "get", APIVersion: "v1", Resource: "pods", Namespace: "a", Name: "x"}
		ctx := upstream.WithRequestInfo(upstream.WithUser(context.Background(), by), info)
		impersonation.WithConstrainedImpersonation(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			want, _ = upstream.UserFrom(r.Context())
		}), a, scheme.Codecs.WithoutConversion()).ServeHTTP(theirs, theirRequest.WithContext(ctx))

		ours := httptest.NewRecorder()
		ourRequest := httptest.NewRequest("GET", "/api/v1/namespaces/a/pods/x", nil)
		ourRequest.Header = headers.Clone()
		record := request.Begin(ourRequest, time.Time{}, logr.Discard())
		if err := record.Resolve("GET"); err != nil {
			t.Fatal(err)
		}
		record.User = by
		left := http.Header{}
		(&impersonate{authorizer: a, next: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got, _ = upstream.UserFrom(r.Context())
			left = r.Header
		})}).ServeHTTP(ours, ourRequest.WithContext(record))

		if !sameUser(got, want) || ours.Code != theirs.Code || ours.Body.String() != theirs.Body.String() {
			t.Fatalf("%v by %v\n got %+v %d %s\nwant %+v %d %s", headers, by, got, ours.Code, ours.Body, want, theirs.Code, theirs.Body)
		}
		for name := range left {
			if name != "Accept" {
				t.Fatalf("header %s was left", name)
			}
		}
		if got != nil && got.GetName() != by.Name {
			allowed++
		}
	}
	if allowed < 500 {
		t.Errorf("only %d impersonations succeeded: the test proves little", allowed)
	}
}

func sameUser(a, b user.Info) bool {
	if a == nil || b == nil {
		return a == b
	}
	same := len(a.GetExtra()) == len(b.GetExtra()) && fmt.Sprint(a.GetExtra()) == fmt.Sprint(b.GetExtra())
	return same && a.GetName() == b.GetName() && a.GetUID() == b.GetUID() && reflect.DeepEqual(append([]string{}, a.GetGroups()...), append([]string{}, b.GetGroups()...))
}
