// Package router finds who answers a request: one look at the path, one look into the catalog.
package router

import (
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// ResourceHandler answers requests for resources.
type ResourceHandler interface {
	Serve(w http.ResponseWriter, r *http.Request, match resource.Match)
}

// Options are what a Router works with.
type Options struct {
	Catalog   *resource.CatalogHolder
	Resources ResourceHandler
	// Discovery answers the paths of groups and versions.
	Discovery http.Handler
	// Complete reports whether the catalog has all resources that existed at the start. It stays true.
	Complete func() bool
}

// Router is the innermost handler of the chain.
type Router struct {
	Options
	// documents answer exact paths; prefixes answer everything below them, the longest first.
	documents map[string]http.Handler
	prefixes  []prefix
}

type prefix struct {
	path    string
	handler http.Handler
}

// New returns a router without documents.
func New(options Options) *Router {
	return &Router{Options: options, documents: map[string]http.Handler{}}
}

// Document answers exactly one path. It must not be called once requests are served.
func (r *Router) Handle(path string, handler http.Handler) { r.documents[path] = handler }

// Below answers every path that begins with path, which ends in a slash. Later ones are asked first.
func (r *Router) HandlePrefix(path string, handler http.Handler) {
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
	// Invariant: read before the catalog, which then lacks only what does not exist.
	complete := r.Complete()
	record := request.From(q.Context())
	if record.Info.IsResourceRequest {
		if match, ok := r.Catalog.Current().Lookup(record.Info.APIGroup, record.Info.APIVersion, record.Info.Resource); ok {
			r.Resources.Serve(w, q, match)
			return
		}
		r.unknown(&record.Info, complete).ServeHTTP(w, q)
		return
	}
	if q.Method != http.MethodGet && readOnly(q.URL.Path) {
		request.WriteError(w, q, request.Generic(http.StatusMethodNotAllowed))
		return
	}
	if !complete && r.needsAll(q.URL.Path) {
		incomplete{}.ServeHTTP(w, q)
		return
	}
	r.nonResource(q.URL.Path, complete).ServeHTTP(w, q)
}

// unknown answers requests for resources that do not exist: with a Status in the groups of built-in kinds.
func (r *Router) unknown(info *upstream.RequestInfo, complete bool) http.Handler {
	if info.APIPrefix == "api" || r.Catalog.Current().BuiltIn(info.APIGroup) {
		return notFound{}
	}
	return missing(complete)
}

// missing answers what nothing else answers.
func missing(complete bool) http.Handler {
	if complete {
		return http.NotFoundHandler()
	}
	return incomplete{}
}

// incomplete mirrors kube-apiserver's notfoundhandler before all paths are installed. Clients act on 404: a garbage
// collector takes it for a deletion.
type incomplete struct{}

func (incomplete) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const retryAfter = 5 // seconds
	err := apierrors.NewServiceUnavailable(
		"the request has been made before all known HTTP paths have been installed, please try again")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	request.WriteError(w, r, err)
}

// needsAll reports whether the answer to a path depends on custom resources. kube-apiserver answers such documents as
// far as it knows; a list that lacks groups is worse than none for a client that acts on what it lacks.
func (r *Router) needsAll(path string) bool {
	if path == "/apis" || strings.HasPrefix(path, "/openapi/") {
		return true
	}
	group, ok := strings.CutPrefix(path, "/apis/")
	group, _, _ = strings.Cut(group, "/")
	return ok && (group == "" || !r.Catalog.Current().BuiltIn(group))
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

func (r *Router) nonResource(path string, complete bool) http.Handler {
	if handler, ok := r.documents[path]; ok {
		return handler
	}
	for _, p := range r.prefixes {
		if strings.HasPrefix(path, p.path) {
			return p.handler
		}
	}
	if path == "/api" || path == "/apis" || strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/") {
		return r.Discovery
	}
	return missing(complete)
}
