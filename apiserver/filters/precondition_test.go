package filters

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	upstreamfilters "k8s.io/apiserver/pkg/endpoints/filters"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/storageversion"
	"k8s.io/client-go/kubernetes/scheme"

	"quorate.dev/apiserver/controllers/storageversions"
	"quorate.dev/apiserver/request"
)

// TestPrecondition sends requests of different users with all verbs to this filter and to kube-apiserver's filter, and
// compares the responses. No storage version has been recorded.
func TestPrecondition(t *testing.T) {
	managed := []schema.GroupResource{
		{Resource: "pods"}, {Resource: "namespaces"}, {Group: "coordination.k8s.io", Resource: "leases"},
		{Group: "internal.apiserver.k8s.io", Resource: "storageversions"},
	}
	manager, recorder := storageversion.NewDefaultManager(), &storageversions.Recorder{}
	var resources []storageversions.Resource
	mapper := runtime.NewEquivalentResourceRegistry()
	for _, name := range managed {
		mapper.RegisterKindFor(name.WithVersion("v1"), "", schema.GroupVersionKind{})
		manager.AddResourceInfo(&storageversion.ResourceInfo{GroupResource: name, EquivalentResourceMapper: mapper})
		resources = append(resources, storageversions.Resource{
			GroupResource: name, Aliases: []schema.GroupResource{name},
		})
	}
	recorder.SetResources(resources)
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) })
	theirs := upstreamfilters.WithStorageVersionPrecondition(served, manager, scheme.Codecs)
	ours := newPrecondition(served, Options{Permit: recorder.PermitRequest})
	refused := 0
	for _, info := range requests() {
		for _, by := range []*user.DefaultInfo{
			nil, {Name: "alice", Groups: []string{user.SystemPrivilegedGroup}}, {Name: user.APIServerUser},
			{Name: user.APIServerUser, Groups: []string{user.AllAuthenticated, user.SystemPrivilegedGroup}},
		} {
			want, got := respond(theirs, info, by), respond(ours, info, by)
			if want.Code != got.Code || want.Body.String() != got.Body.String() {
				t.Errorf("%+v by %+v:\ngot  %d %s\nwant %d %s", info, by, got.Code, got.Body, want.Code, want.Body)
			}
			if got.Code == http.StatusServiceUnavailable {
				refused++
			}
		}
	}
	if refused == 0 {
		t.Error("no request is refused")
	}
}

// requests returns requests with all verbs of managed and other resources.
func requests() []upstream.RequestInfo {
	all := []upstream.RequestInfo{{Verb: "post", Path: "/version"}}
	for _, verb := range []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"} {
		for _, of := range []upstream.RequestInfo{
			{Resource: "pods", Namespace: "a"}, {Resource: "pods", Namespace: "a", Subresource: "eviction"},
			{Resource: "namespaces"}, {Resource: "namespaces", Subresource: "finalize"}, {Resource: "unknown"},
			{APIGroup: "coordination.k8s.io", Resource: "leases", Namespace: "kube-system"},
			{APIGroup: "coordination.k8s.io", Resource: "leases", Namespace: "default"},
			{APIGroup: "internal.apiserver.k8s.io", Resource: "storageversions"},
			{APIGroup: "internal.apiserver.k8s.io", Resource: "storageversions", Subresource: "status"},
			{APIGroup: "authentication.k8s.io", Resource: "tokenreviews"}, {APIGroup: "example.com", Resource: "pods"},
		} {
			of.IsResourceRequest, of.Verb, of.APIVersion = true, verb, "v1"
			all = append(all, of)
		}
	}
	return all
}

// respond returns the response of a filter to a request.
func respond(filter http.Handler, info upstream.RequestInfo, by *user.DefaultInfo) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	record := &request.Record{Context: r.Context(), Info: info}
	ctx := upstream.WithRequestInfo(record, &info)
	if by != nil {
		record.User = by
		ctx = upstream.WithUser(ctx, by)
	}
	w := httptest.NewRecorder()
	filter.ServeHTTP(w, r.WithContext(ctx))
	return w
}

// TestPreconditionOfChain checks that a request without permission gets 403 also if a permitted request would have to
// wait, and that a chain without Options.Permit has no filter for it.
func TestPreconditionOfChain(t *testing.T) {
	recorder := &storageversions.Recorder{}
	name := schema.GroupResource{Resource: "pods"}
	recorder.SetResources([]storageversions.Resource{{GroupResource: name, Aliases: []schema.GroupResource{name}}})
	f := newFixture(t, func(o *Options) { o.Permit = recorder.PermitRequest }, ok)
	for name, want := range map[string]int{"mallory": http.StatusForbidden, "alice": http.StatusServiceUnavailable} {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/api/v1/namespaces/a/pods", nil)
		r.Header.Set("Authorization", name)
		w := httptest.NewRecorder()
		f.server.Config.Handler.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("%s: got %d %s, want %d", name, w.Code, w.Body, want)
		}
	}
	if _, wrapped := newPrecondition(http.HandlerFunc(ok), Options{}).(*precondition); wrapped {
		t.Error("the chain has a filter without a precondition")
	}
}
