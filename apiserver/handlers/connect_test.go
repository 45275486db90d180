package handlers_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/resource"
)

// backend is the handler of connect requests. It responds with the method, the parent object and the option "path".
func backend(_ context.Context, call resource.Call) (http.Handler, error) {
	if call.Name == "missing" {
		return nil, apierrors.NewNotFound(call.Definition.GroupResource(), call.Name)
	}
	path := call.Body.(*corev1.PodProxyOptions).Path
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "%s %s/%s %s", r.Method, call.Namespace, call.Name, path)
	}), nil
}

// options decodes the query of a connect request.
func options(query url.Values) (runtime.Object, error) {
	if query.Has("broken") {
		return nil, errors.New("broken options")
	}
	return &corev1.PodProxyOptions{Path: query.Get("path")}, nil
}

// TestConnect sends requests to subresources whose requests are passed to a backend.
func TestConnect(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil, func(c *resource.Catalog) {
		pods, _ := c.Lookup("", "v1", "pods")
		pods.Version.Endpoints["exec"] = &resource.Endpoint{Subresource: "exec", Connect: &resource.Connect{
			Methods: []string{http.MethodGet, http.MethodPost}, Options: options, Handler: backend,
		}}
		pods.Version.Endpoints["proxy"] = &resource.Endpoint{Subresource: "proxy", Connect: &resource.Connect{
			Methods: []string{http.MethodGet, http.MethodPut}, Path: true, Options: options, Handler: backend,
		}}
		pods.Version.Endpoints["log"] = &resource.Endpoint{Subresource: "log", Connect: &resource.Connect{
			Methods: []string{http.MethodGet}, Reads: true, Options: options, Handler: backend,
		}}
	})
	const pod = "/api/v1/namespaces/a/pods/x"
	s.run(t, []exchange{
		{name: "exec", request: "POST " + pod + "/exec", code: http.StatusOK, want: `"POST a/x "`},
		{
			name: "method that is not allowed", request: "PUT " + pod + "/exec", code: http.StatusMethodNotAllowed,
			want: `{reason: MethodNotAllowed}`,
		},
		{
			name: "exec has no path", request: "POST " + pod + "/exec/y", code: http.StatusNotFound, want: `{reason: NotFound}`,
		},
		{name: "proxy without a path", request: "GET " + pod + "/proxy", code: http.StatusOK, want: `"GET a/x "`},
		{name: "proxy to the root", request: "GET " + pod + "/proxy/", code: http.StatusOK, want: `"GET a/x /"`},
		{
			name: "proxy to a path", request: "PUT " + pod + "/proxy/y/z/?query=1&path=other", code: http.StatusOK,
			want: `"PUT a/x /y/z/"`,
		},
		{
			name: "name with a scheme and a port, which no stored object has", code: http.StatusOK,
			request: "GET /api/v1/namespaces/a/pods/https:x:443/proxy/y", want: `"GET a/https:x:443 /y"`,
		},
		{
			name: "object that does not exist", request: "GET /api/v1/namespaces/a/pods/missing/proxy",
			code: http.StatusNotFound, want: `{reason: NotFound, message: pods "missing" not found}`,
		},
		{
			name: "invalid options", request: "GET " + pod + "/proxy?broken=1", code: http.StatusBadRequest,
			want: `{reason: BadRequest, message: broken options}`,
		},
		{
			name: "dry run", request: "POST " + pod + "/exec?dryRun=All", code: http.StatusBadRequest,
			want: `{message: dryRun is not supported}`,
		},
		{name: "log", request: "GET " + pod + "/log", code: http.StatusOK, want: `"GET a/x "`},
		{name: "log as any media type", request: "GET " + pod + "/log", accepts: "*/*", code: http.StatusOK},
		{name: "log for clients of objects", request: "GET " + pod + "/log", accepts: jsonType, code: http.StatusOK},
		{
			name: "log as HTML, which the route does not produce", request: "GET " + pod + "/log", accepts: "text/html",
			code: http.StatusNotAcceptable,
			want: `{message: "~Available representations: text/plain, application/json"}`,
		},
		{
			name: "log as plain text, which the handler does not negotiate", request: "GET " + pod + "/log",
			accepts: "text/plain", code: http.StatusNotAcceptable,
			want: `{message: "~only the following media types are accepted: application/json"}`,
		},
	})
}
