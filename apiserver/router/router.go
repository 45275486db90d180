// Package router finds who answers a request: one look at the path, one look into the catalog.
package router

import (
	"net/http"
	"strings"

	upstream "k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// ResourceHandler answers requests for resources.
type ResourceHandler interface {
	Serve(w http.ResponseWriter, r *http.Request, match resource.Match)
}

// Router is the innermost handler of the chain.
type Router struct {
	catalog   *resource.Publisher
	resources ResourceHandler
	// documents answer exact paths; prefixes answer everything below them, the longest first.
	documents map[string]http.Handler
	prefixes  []prefix
	discovery http.Handler
	missing   http.Handler
}

type prefix struct {
	path    string
	handler http.Handler
}

// New returns a router without documents. discovery answers the paths of groups and versions, missing what nobody
// else answers.
func New(catalog *resource.Publisher, resources ResourceHandler, discovery, missing http.Handler) *Router {
	return &Router{catalog: catalog, resources: resources, documents: map[string]http.Handler{}, discovery: discovery, missing: missing}
}

// Document answers exactly one path. It must not be called once requests are served.
func (r *Router) Document(path string, handler http.Handler) { r.documents[path] = handler }

// Below answers every path that begins with path, which ends in a slash. Later ones are asked first.
func (r *Router) Below(path string, handler http.Handler) {
	r.prefixes = append([]prefix{{path, handler}}, r.prefixes...)
}

// Documents returns the paths that are answered exactly.
func (r *Router) Documents() []string {
	paths := make([]string, 0, len(r.documents))
	for path := range r.documents {
		paths = append(paths, path)
	}
	return paths
}

// ServeHTTP implements http.Handler.
func (r *Router) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	record := request.From(q.Context())
	if record.Info.IsResourceRequest {
		if match, ok := r.catalog.Current().Lookup(record.Info.APIGroup, record.Info.APIVersion, record.Info.Resource); ok {
			r.resources.Serve(w, q, match)
			return
		}
		r.unknown(&record.Info).ServeHTTP(w, q)
		return
	}
	if q.Method != http.MethodGet && readOnly(q.URL.Path) {
		request.WriteError(w, q, request.Generic(http.StatusMethodNotAllowed))
		return
	}
	r.nonResource(q.URL.Path).ServeHTTP(w, q)
}

// unknown answers requests for resources that do not exist: with a Status in the groups of built-in kinds.
func (r *Router) unknown(info *upstream.RequestInfo) http.Handler {
	if info.APIPrefix == "api" || r.catalog.Current().BuiltIn(info.APIGroup) {
		return notFound{}
	}
	return r.missing
}

// notFound answers with a Status that names nothing.
type notFound struct{}

func (notFound) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request.WriteError(w, r, request.Generic(http.StatusNotFound))
}

// readOnly reports whether a path is one of the documents that kube-apiserver answers to GET only; it does not care
// about the method of the others.
func readOnly(path string) bool {
	path = strings.TrimSuffix(path, "/")
	return path == "/version" || path == "/api" || strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/")
}

func (r *Router) nonResource(path string) http.Handler {
	if handler, ok := r.documents[path]; ok {
		return handler
	}
	for _, p := range r.prefixes {
		if strings.HasPrefix(path, p.path) {
			return p.handler
		}
	}
	if path == "/api" || path == "/apis" || strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/") {
		return r.discovery
	}
	return r.missing
}
