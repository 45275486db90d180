package request

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/sets"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
)

var resolver = &upstream.RequestInfoFactory{
	APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
}

// sameAsUpstream resolves a request line with both resolvers.
func sameAsUpstream(t *testing.T, method, path, query string) {
	t.Helper()
	r := &http.Request{Method: method, URL: &url.URL{Path: path, RawQuery: query}}
	want, wantErr := resolver.NewRequestInfo(r)
	record := Begin(r, time.Time{}, logr.Discard())
	err := record.Resolve(method)
	if (err == nil) != (wantErr == nil) {
		t.Fatalf("%s %s?%s: error %v, upstream's %v", method, path, query, err, wantErr)
	}
	got := record.Info
	if len(got.Parts) == 0 && len(want.Parts) == 0 {
		got.Parts, want.Parts = nil, nil
	}
	if !reflect.DeepEqual(got, *want) {
		t.Errorf("%s %s?%s\n got %+v\nwant %+v", method, path, query, got, *want)
	}
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "CONNECT", "get"}

func TestResolveLikeUpstream(t *testing.T) {
	paths := []string{
		"", "/", "//", "/healthz", "/api", "/api/", "/api/v1", "/apis", "/apis/apps", "/apis/apps/v1", "/version/",
		"/api/v1/pods", "/api/v1/pods/", "//api//v1//pods", "/api/v1/namespaces", "/api/v1/namespaces/a",
		"/api/v1/namespaces/a/status", "/api/v1/namespaces/a/finalize", "/api/v1/namespaces/a/pods",
		"/api/v1/namespaces/a/pods/b", "/api/v1/namespaces/a/pods/b/log", "/api/v1/namespaces/a/pods/b/proxy/x/y/z",
		"/api/v1/namespaces/a/status/b", "/apis/apps/v1/deployments", "/apis/apps/v1/namespaces/a/deployments/b/scale",
		"/api/v1/watch", "/api/v1/watch/", "/api/v1/watch/pods", "/api/v1/watch/pods/a",
		"/api/v1/watch/namespaces/a/pods", "/api/v1/watch/namespaces/a/pods/b", "/api/v1/proxy/nodes/a",
		"/api/v1/proxy/namespaces/a/pods/b/c/d", "/apis/apps/v1/watch/deployments", "/apis/a/b/c/d/e/f/g/h/i/j/k/l",
		"/other/v1/pods", "/api/v1/nodes/a/proxy/metrics",
	}
	queries := []string{
		"", "watch", "watch=true", "watch=false", "watch=0", "watch=FALSE", "watch=1&watch=0", "watch=",
		"fieldSelector=metadata.name%3Dx", "fieldSelector=metadata.name=x&watch=1", "fieldSelector=metadata.name!=x",
		"fieldSelector=metadata.name=a/b", "fieldSelector=metadata.name==x,spec.nodeName=y", "fieldSelector=%3D%3D",
		"fieldSelector=metadata.name=x&labelSelector=!!", "labelSelector=a%3Db", "labelSelector=a=b&fieldSelector=c=d",
		"fieldSelector=metadata.name=x&limit=abc", "limit=abc&watch=1", "timeoutSeconds=x&fieldSelector=metadata.name=x",
		"fieldSelector=metadata.name=x&fieldSelector=metadata.name=y", "a=%zz&watch=1", "watch=1;fieldSelector=x",
		"fieldSelector=metadata.name=", "resourceVersion=1&fieldSelector=metadata.name%3D..",
	}
	for _, method := range methods {
		for _, path := range paths {
			for _, query := range queries {
				sameAsUpstream(t, method, path, query)
			}
		}
	}
}

func FuzzResolve(f *testing.F) {
	f.Add(0, "/api/v1/namespaces/a/pods/b", "watch=1")
	f.Add(5, "/apis/apps/v1/watch/x", "fieldSelector=metadata.name=x")
	f.Add(1, "/api/v1/proxy/a/b/c", "labelSelector=x")
	f.Fuzz(func(t *testing.T, method int, path, query string) {
		sameAsUpstream(t, methods[uint(method)%uint(len(methods))], path, query)
	})
}

func TestIsLongRunning(t *testing.T) {
	for target, want := range map[string]bool{
		"GET /api/v1/pods":                                false,
		"GET /api/v1/pods?watch=1":                        true,
		"GET /api/v1/watch/pods":                          true,
		"GET /api/v1/namespaces/a/pods/b/log":             true,
		"POST /api/v1/namespaces/a/pods/b/exec":           true,
		"POST /api/v1/namespaces/a/pods/b/eviction":       false,
		"GET /api/v1/namespaces/a/services/b/proxy/watch": true,
		"GET /debug/pprof/profile":                        true,
		"GET /healthz/log":                                false,
	} {
		method, path, _ := strings.Cut(target, " ")
		r := httptest.NewRequest(method, path, nil)
		record := Begin(r, time.Time{}, logr.Discard())
		if err := record.Resolve(method); err != nil {
			t.Fatal(err)
		}
		if got := IsLongRunning(&record.Info); got != want {
			t.Errorf("%s: long-running %v, want %v", target, got, want)
		}
	}
}

func BenchmarkResolve(b *testing.B) {
	r := httptest.NewRequest("GET", "/api/v1/namespaces/default/pods/web-0", nil)
	b.Run("ours", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			record := Begin(r, time.Time{}, logr.Discard())
			_ = record.Resolve(r.Method)
		}
	})
	b.Run("upstream", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			_, _ = resolver.NewRequestInfo(r)
		}
	})
}
