package router

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// named is a handler that responds with its name.
type named string

func (n named) ServeHTTP(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, string(n)) }

// newRouter returns a router with a built-in resource in a group whose name has a dot, a custom resource, and some
// other paths. It must not wait for custom resources.
func newRouter(t *testing.T, complete bool) *Router {
	t.Helper()
	holder := &resource.CatalogHolder{}
	holder.Publish(resource.NewCatalog(
		&resource.Definition{Plural: "pods", Versions: []*resource.Version{{Name: "v1"}}},
		&resource.Definition{Group: "apps.k8s.io", Plural: "deployments", Versions: []*resource.Version{{Name: "v1"}}},
		&resource.Definition{
			Source: resource.Custom, Group: "example.com", Plural: "things", Versions: []*resource.Version{{Name: "v1"}},
		},
	))
	r := New(Options{
		Catalog: holder, Resources: served{}, Discovery: served{}, Complete: func() bool { return complete },
		Await: func(context.Context) error {
			t.Error("the router waits for custom resources")
			return errors.New("not expected")
		},
	})
	r.Handle("/version", named("version"))
	r.Handle("/healthz", named("healthz"))
	r.Handle("/openapi/v2", named("openapi"))
	r.HandlePrefix("/one/", named("one"))
	r.HandlePrefix("/one/two/", named("two"))
	r.HandlePrefix("/three/four/", named("four"))
	r.HandlePrefix("/three/", named("three"))
	return r
}

// record returns the record of a request, and the request with the record as its context.
func record(t *testing.T, method, path string) (*request.Record, *http.Request) {
	t.Helper()
	q := httptest.NewRequestWithContext(t.Context(), method, path, nil)
	record := request.Begin(q, time.Now(), testr.New(t))
	if err := record.Resolve(method); err != nil {
		t.Fatal(err)
	}
	return record, q.WithContext(record)
}

// TestPaths sends requests for documents and resources, before and after the catalog is complete. Until it is complete,
// responses that depend on custom resources are 503: clients act on 404 and on missing groups.
func TestPaths(t *testing.T) {
	t.Parallel()
	const (
		notFound   = `"reason":"NotFound"`
		method     = `"reason":"MethodNotAllowed"`
		incomplete = "before all known HTTP paths have been installed, please try again"
	)
	for _, test := range []struct {
		name, request string
		// code and contains are expected of a complete catalog, before and beforeContains of an incomplete one. If before is
		// 0, an incomplete catalog gives the same response.
		code           int
		contains       string
		before         int
		beforeContains string
	}{
		{name: "document", request: "GET /version", code: 200, contains: "version"},
		{name: "method of a document that is only read", request: "POST /version", code: 405, contains: method},
		{name: "slash at the end", request: "GET /healthz/", code: 404, contains: "404 page not found", before: 503},
		{name: "other documents ignore the method", request: "POST /healthz", code: 200, contains: "healthz"},
		{name: "prefix", request: "GET /one/x", code: 200, contains: "one"},
		{name: "longer prefix that was registered later", request: "GET /one/two/x", code: 200, contains: "two"},
		{name: "longer prefix that was registered earlier", request: "GET /three/four/x", code: 200, contains: "three"},
		{
			name: "prefix without its slash", request: "GET /one", code: 404, contains: "404 page not found", before: 503,
			beforeContains: incomplete,
		},
		{
			name: "schemas include custom resources", request: "GET /openapi/v2", code: 200, contains: "openapi", before: 503,
			beforeContains: incomplete,
		},
		{name: "versions of the core group", request: "GET /api", code: 200, contains: "discovery"},
		{name: "resources of the core group", request: "GET /api/v1", code: 200, contains: "discovery"},
		{name: "method of discovery", request: "DELETE /apis/apps.k8s.io/v1", code: 405, contains: method},
		{
			name: "groups", request: "GET /apis", code: 200, contains: "discovery", before: 503, beforeContains: incomplete,
		},
		{name: "built-in group", request: "GET /apis/apps.k8s.io", code: 200, contains: "discovery"},
		{
			name: "group of custom resources", request: "GET /apis/example.com/v1", code: 200, contains: "discovery",
			before: 503, beforeContains: incomplete,
		},
		{
			name: "group without a dot, which custom resources cannot have", request: "GET /apis/other", code: 200,
			contains: "discovery", before: 503, beforeContains: incomplete,
		},
		{name: "built-in resource", request: "GET /api/v1/namespaces/a/pods/x", code: 200, contains: "pods"},
		{name: "custom resource", request: "PATCH /apis/example.com/v1/things/x", code: 200, contains: "things"},
		{name: "unknown resource of the core group", request: "GET /api/v1/things", code: 404, contains: notFound},
		{name: "unknown version of the core group", request: "GET /api/v2/pods", code: 404, contains: notFound},
		{
			name: "unknown resource of a built-in group", request: "GET /apis/apps.k8s.io/v1/things", code: 404,
			contains: notFound,
		},
		{
			name: "unknown resource of a group without a dot", request: "GET /apis/other/v1/things", code: 404,
			contains: "404 page not found", before: 503, beforeContains: incomplete,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			method, path, _ := strings.Cut(test.request, " ")
			for _, complete := range []bool{true, false} {
				code, contains := test.code, test.contains
				if !complete && test.before != 0 {
					code, contains = test.before, test.beforeContains
				}
				_, q := record(t, method, path)
				w := httptest.NewRecorder()
				newRouter(t, complete).ServeHTTP(w, q)
				if w.Code != code || !strings.Contains(w.Body.String(), contains) {
					t.Errorf("complete %t: got %d %s, want %d %s", complete, w.Code, w.Body, code, contains)
				}
				if got := w.Header().Get("Retry-After"); (got == "5") != (code == http.StatusServiceUnavailable) {
					t.Errorf("complete %t: got the header Retry-After %q with status code %d", complete, got, code)
				}
			}
		})
	}
}

// TestDelegates sends a request for a resource of an extension API server, which also serves resources that the catalog
// has.
func TestDelegates(t *testing.T) {
	t.Parallel()
	record, q := record(t, http.MethodGet, "/apis/example.com/v1/things")
	record.Delegate = named("extension")
	w := httptest.NewRecorder()
	newRouter(t, true).ServeHTTP(w, q)
	if got := w.Body.String(); got != "extension" {
		t.Errorf("got %d %s, want the response of the extension API server", w.Code, got)
	}
}

// TestDocuments checks the list of paths in the document at the server's root.
func TestDocuments(t *testing.T) {
	t.Parallel()
	got := newRouter(t, true).Documents()
	slices.Sort(got)
	if want := []string{"/healthz", "/openapi/v2", "/version"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
