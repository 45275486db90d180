// Package router finds the handler of a request by its path and one lookup in the catalog.
package router

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// ResourceHandler serves requests for resources.
type ResourceHandler interface {
	Serve(w http.ResponseWriter, r *http.Request, match resource.Match)
}

// Options configure a Router.
type Options struct {
	Catalog   *resource.CatalogHolder
	Resources ResourceHandler
	// Discovery serves the paths of groups and versions.
	Discovery http.Handler
	// Complete reports whether the catalog has all resources that existed at the start. It never returns to false.
	Complete func() bool
	// Await returns when the catalog has all custom resources whose definitions were stored before the call. Concurrent
	// calls must share what they cost.
	Await func(context.Context) error
}

// Router is the innermost handler of the chain.
type Router struct {
	Options
	handlers map[string]http.Handler // by exact path
	prefixes []prefix                // latest first
}

type prefix struct {
	path    string
	handler http.Handler
}

// New returns a router that serves resources and discovery only.
func New(options Options) *Router {
	return &Router{Options: options, handlers: map[string]http.Handler{}}
}

// Handle registers the handler of one path. It must not be called while requests are served.
func (r *Router) Handle(path string, handler http.Handler) { r.handlers[path] = handler }

// HandlePrefix registers the handler of all paths that begin with path, which ends in a slash. Later calls take
// precedence. It must not be called while requests are served.
func (r *Router) HandlePrefix(path string, handler http.Handler) {
	r.prefixes = append([]prefix{{path, handler}}, r.prefixes...)
}

// Documents returns the paths registered by Handle.
func (r *Router) Documents() []string {
	paths := make([]string, 0, len(r.handlers))
	for path := range r.handlers {
		paths = append(paths, path)
	}
	return paths
}

// ServeHTTP implements http.Handler.
func (r *Router) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	record := request.From(q.Context())
	if record.Delegate != nil {
		record.Delegate.ServeHTTP(w, q)
		return
	}
	// Read before the catalog: if complete, a resource that the catalog lacks does not exist.
	complete := r.Complete()
	if record.Info.IsResourceRequest {
		r.serveResource(w, q, &record.Info, complete)
		return
	}
	if q.Method != http.MethodGet && readOnly(q.URL.Path) {
		request.WriteError(w, q, request.Generic(http.StatusMethodNotAllowed))
		return
	}
	if !complete && r.needsAll(q.URL.Path) {
		Incomplete{}.ServeHTTP(w, q)
		return
	}
	if !r.hasVersion(q.URL.Path) && !r.caughtUp(q.Context()) {
		Incomplete{}.ServeHTTP(w, q)
		return
	}
	r.nonResource(q.URL.Path, complete).ServeHTTP(w, q)
}

func (r *Router) serveResource(w http.ResponseWriter, q *http.Request, info *upstream.RequestInfo, complete bool) {
	match, ok := r.Catalog.Current().Lookup(info.APIGroup, info.APIVersion, info.Resource)
	if !ok && complete && info.APIPrefix == "apis" && r.canBeCustom(info.APIGroup) {
		if !r.caughtUp(q.Context()) {
			Incomplete{}.ServeHTTP(w, q)
			return
		}
		match, ok = r.Catalog.Current().Lookup(info.APIGroup, info.APIVersion, info.Resource)
	}
	if !ok {
		r.unknown(info, complete).ServeHTTP(w, q)
		return
	}
	r.Resources.Serve(w, q, match)
}

// awaitTimeout bounds how long a request for an unknown resource waits.
const awaitTimeout = 3 * time.Second

// caughtUp reports whether the catalog has every definition that was stored before the call. A replica that lags behind
// the one that established a definition must not answer 404, which clients take for a deletion.
func (r *Router) caughtUp(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	return r.Await(ctx) == nil
}

// canBeCustom reports whether a group can have custom resources, whose groups have a dot.
func (r *Router) canBeCustom(group string) bool {
	return strings.Contains(group, ".") && !r.Catalog.Current().BuiltIn(group)
}

// hasVersion reports whether the catalog has the group and version of a discovery document. It is true for other paths.
func (r *Router) hasVersion(path string) bool {
	path, ok := strings.CutPrefix(strings.TrimSuffix(path, "/"), "/apis/")
	name, version, named := strings.Cut(path, "/")
	if !ok || !r.canBeCustom(name) {
		return true
	}
	group := r.Catalog.Current().Group(name)
	return group != nil && (!named || slices.ContainsFunc(group.Versions, func(gv resource.GroupVersion) bool {
		return gv.Version == version
	}))
}

// unknown returns the handler of resources that are not in the catalog. It responds with a Status in groups of built-in
// kinds.
func (r *Router) unknown(info *upstream.RequestInfo, complete bool) http.Handler {
	if info.APIPrefix == "api" || r.Catalog.Current().BuiltIn(info.APIGroup) {
		return notFound{}
	}
	return missing(complete)
}

// missing returns the handler of paths without another handler.
func missing(complete bool) http.Handler {
	if complete {
		return http.NotFoundHandler()
	}
	return Incomplete{}
}

// Incomplete mirrors kube-apiserver's notfoundhandler before all paths are installed. Clients act on 404: the garbage
// collector treats it as a deletion.
type Incomplete struct{}

// ServeHTTP implements http.Handler.
func (Incomplete) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const retryAfter = 5 // seconds
	err := apierrors.NewServiceUnavailable(
		"the request has been made before all known HTTP paths have been installed, please try again")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	request.WriteError(w, r, err)
}

// needsAll reports whether a document depends on custom resources. kube-apiserver serves incomplete documents at the
// start; here they fail, because clients act on the absence of groups.
func (r *Router) needsAll(path string) bool {
	if path == "/apis" || strings.HasPrefix(path, "/openapi/") {
		return true
	}
	group, ok := strings.CutPrefix(path, "/apis/")
	group, _, _ = strings.Cut(group, "/")
	return ok && (group == "" || !r.Catalog.Current().BuiltIn(group))
}

// notFound responds with a generic Status.
type notFound struct{}

func (notFound) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request.WriteError(w, r, request.Generic(http.StatusNotFound))
}

// readOnly reports whether kube-apiserver serves a path for GET only. It ignores the method of other documents.
func readOnly(path string) bool {
	path = strings.TrimSuffix(path, "/")
	return path == "/version" || path == "/api" || strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/")
}

func (r *Router) nonResource(path string, complete bool) http.Handler {
	if handler, ok := r.handlers[path]; ok {
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
