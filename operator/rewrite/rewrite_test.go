package rewrite

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
)

// api is an API server with Secrets, ConfigMaps and Widgets. It lists two objects per page and records the patches.
type api struct {
	objects map[string]int                                // number of objects, by path of the collection
	fail    func(w http.ResponseWriter, path string) bool // nil: no request fails
	patched []string
	broken  bool // discovery of group example.org fails
}

func (a *api) start(t *testing.T) *rest.Config {
	server := httptest.NewServer(a)
	t.Cleanup(server.Close)
	return &rest.Config{Host: server.URL, QPS: -1}
}

// ServeHTTP implements http.Handler.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	verbs := []string{"list", "patch"}
	switch path := r.URL.Path; {
	case path == "/api":
		write(w, metav1.APIVersions{Versions: []string{"v1"}})
	case path == "/apis":
		version := metav1.GroupVersionForDiscovery{GroupVersion: "example.org/v1", Version: "v1"}
		write(w, metav1.APIGroupList{Groups: []metav1.APIGroup{
			{Name: "example.org", Versions: []metav1.GroupVersionForDiscovery{version}, PreferredVersion: version},
		}})
	case path == "/api/v1":
		write(w, metav1.APIResourceList{GroupVersion: "v1", APIResources: []metav1.APIResource{
			{Name: "secrets", Namespaced: true, Verbs: verbs}, {Name: "configmaps", Namespaced: true, Verbs: verbs},
			{Name: "bindings", Namespaced: true, Verbs: []string{"create"}}, {
				Name: "pods/status", Namespaced: true, Verbs: verbs,
			},
		}})
	case path == "/apis/example.org/v1" && a.broken:
		w.WriteHeader(http.StatusServiceUnavailable)
	case path == "/apis/example.org/v1":
		write(w, metav1.APIResourceList{
			GroupVersion: "example.org/v1", APIResources: []metav1.APIResource{{Name: "widgets", Verbs: verbs}},
		})
	case a.fail != nil && a.fail(w, r.Method+" "+path+"?"+r.URL.RawQuery):
	case r.Method == http.MethodPatch:
		a.patched = append(a.patched, path)
		write(w, metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadata"},
		})
	default:
		a.list(w, r)
	}
}

func (a *api) list(w http.ResponseWriter, r *http.Request) {
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	list := metav1.PartialObjectMetadataList{
		TypeMeta: metav1.TypeMeta{APIVersion: "meta.k8s.io/v1", Kind: "PartialObjectMetadataList"},
	}
	for i := from; i < min(from+2, a.objects[r.URL.Path]); i++ {
		object := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("o", i)}}
		if strings.HasPrefix(r.URL.Path, "/api/") {
			object.Namespace = "ns"
		}
		list.Items = append(list.Items, object)
	}
	if from+2 < a.objects[r.URL.Path] {
		list.Continue = fmt.Sprint(from + 2)
	}
	write(w, list)
}

func write(w http.ResponseWriter, value any) {
	if err := json.NewEncoder(w).Encode(value); err != nil {
		panic(err)
	}
}

func fail(w http.ResponseWriter, code int, reason metav1.StatusReason, next string) {
	w.WriteHeader(code)
	write(w, metav1.Status{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Status"}, Status: metav1.StatusFailure,
		Code: int32(code), Reason: reason, ListMeta: metav1.ListMeta{Continue: next},
	})
}

var farFuture = time.Now().Add(time.Hour)

func TestRun(t *testing.T) {
	a := &api{objects: map[string]int{"/api/v1/secrets": 3, "/api/v1/configmaps": 1, "/apis/example.org/v1/widgets": 1}}
	r := Rewriter{Config: a.start(t), Patterns: []string{"secrets", "*.example.org"}}
	at, done, err := r.Run(t.Context(), Position{}, farFuture, time.Now)
	if err != nil || !done || at.Objects != 4 {
		t.Errorf("Run() = %+v, %v, %v; want 4 objects", at, done, err)
	}
	want := []string{
		"/api/v1/namespaces/ns/secrets/o0", "/api/v1/namespaces/ns/secrets/o1", "/api/v1/namespaces/ns/secrets/o2",
		"/apis/example.org/v1/widgets/o0",
	}
	slices.Sort(a.patched)
	if !slices.Equal(a.patched, want) {
		t.Errorf("patched %v, want %v", a.patched, want)
	}
}

// TestRunContinues checks that an interrupted rewrite continues at its position, in another process.
func TestRunContinues(t *testing.T) {
	a := &api{objects: map[string]int{"/api/v1/secrets": 5, "/api/v1/configmaps": 2}}
	r := Rewriter{Config: a.start(t), Patterns: []string{"*.*"}}
	var at Position
	for runs := 1; ; runs++ {
		calls := 0
		now := func() time.Time { // the deadline runs after the first page
			calls++
			return farFuture.Add(time.Duration(calls))
		}
		next, done, err := r.Run(t.Context(), at, farFuture.Add(1), now)
		if err != nil || runs > 10 {
			t.Fatalf("run %d: %+v, %v", runs, next, err)
		}
		if at = next; done {
			break
		}
	}
	if at.Objects != 7 || len(a.patched) != 7 {
		t.Errorf("%d objects, %d patches; want 7", at.Objects, len(a.patched))
	}
}

func TestRunErrors(t *testing.T) {
	for name, c := range map[string]struct {
		fail    func(w http.ResponseWriter, path string) bool
		broken  bool
		want    string // part of the error
		patched int
	}{
		"object deleted meanwhile": {
			fail: func(w http.ResponseWriter, path string) bool {
				deleted := strings.HasPrefix(path, "PATCH /api/v1/namespaces/ns/secrets/o0")
				if deleted {
					fail(w, http.StatusNotFound, metav1.StatusReasonNotFound, "")
				}
				return deleted
			}, patched: 2,
		},
		"write refused": {
			fail: func(w http.ResponseWriter, path string) bool {
				refused := strings.HasPrefix(path, "PATCH")
				if refused {
					fail(w, http.StatusForbidden, metav1.StatusReasonForbidden, "")
				}
				return refused
			}, want: "rewrite secrets: ns/o0",
		},
		"list refused": {
			fail: func(w http.ResponseWriter, _ string) bool {
				fail(w, http.StatusForbidden, metav1.StatusReasonForbidden, "")
				return true
			}, want: "rewrite secrets",
		},
		"group of an extension server": {broken: true, patched: 3},
	} {
		t.Run(name, func(t *testing.T) {
			a := &api{objects: map[string]int{"/api/v1/secrets": 3}, fail: c.fail, broken: c.broken}
			_, done, err := Rewriter{Config: a.start(t), Patterns: []string{"secrets"}}.Run(t.Context(), Position{},
				farFuture, time.Now)
			if c.want == "" && (err != nil || !done) ||
				c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want) || done) {
				t.Errorf("done %v, error %v; want error %q", done, err, c.want)
			}
			if len(a.patched) != c.patched {
				t.Errorf("%d patches, want %d", len(a.patched), c.patched)
			}
		})
	}
}

// TestRunExpiredList checks that a list whose revision was compacted continues with the token in the server's error.
func TestRunExpiredList(t *testing.T) {
	expired := false
	a := &api{objects: map[string]int{"/api/v1/secrets": 5}}
	a.fail = func(w http.ResponseWriter, path string) bool {
		if expired || !strings.Contains(path, "continue=2") {
			return false
		}
		expired = true
		fail(w, http.StatusGone, metav1.StatusReasonExpired, "3")
		return true
	}
	at, done, err := Rewriter{Config: a.start(t), Patterns: []string{"secrets"}}.Run(t.Context(), Position{},
		farFuture, time.Now)
	if err != nil || !done || !expired || len(a.patched) != 4 {
		t.Errorf("Run() = %+v, %v, %v, %d patches; want 4", at, done, err, len(a.patched))
	}
}

func TestRunCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	a := &api{objects: map[string]int{"/api/v1/secrets": 1}}
	if _, done, err := (Rewriter{Config: a.start(t), Patterns: []string{"secrets"}}).Run(
		ctx, Position{}, farFuture, time.Now,
	); done || err == nil {
		t.Errorf("done %v, error %v; want an error", done, err)
	}
}

func TestMatches(t *testing.T) {
	secrets, events := schema.GroupResource{Resource: "secrets"}, schema.GroupResource{
		Group: "events.k8s.io", Resource: "events",
	}
	widgets := schema.GroupResource{Group: "example.org", Resource: "widgets"}
	for pattern, want := range map[string][]schema.GroupResource{
		"secrets": {secrets}, "secrets.": {secrets}, "*.": {secrets}, "*.*": {secrets, events, widgets}, "events": {events},
		"widgets.example.org": {widgets}, "*.example.org": {widgets}, "widgets": nil,
	} {
		for _, resource := range []schema.GroupResource{secrets, events, widgets} {
			if got := matches([]string{pattern}, resource); got != slices.Contains(want, resource) {
				t.Errorf("matches(%q, %s) = %v", pattern, resource, got)
			}
		}
	}
}
