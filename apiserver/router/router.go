// Package router selects the handler of a request: by its path, or with one lookup of its resource in the catalog.
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
	// Discovery serves the discovery documents below /api and /apis.
	Discovery http.Handler
	// Complete reports whether the catalog has all resources that existed when the server started. Once true, it stays
	// true.
	Complete func() bool
	// Await returns when the catalog has all custom resources whose definitions were stored before the call. Concurrent
	// calls must share their cost.
	Await func(context.Context) error
}

// Router selects the handler of a request and calls it. It is the innermost handler, inside the filters.
type Router struct {
	Options
	// handlers maps exact paths to handlers.
	handlers map[string]http.Handler
	// prefixes has the prefixes that were registered last first.
	prefixes []prefix
}

type prefix struct {
	path    string
	handler http.Handler
}

// New returns a router that serves only resources and discovery. Handle and HandlePrefix add other paths.
func New(options Options) *Router {
	return &Router{Options: options, handlers: map[string]http.Handler{}}
}

// Handle registers the handler of one path. It must not be called while requests are served.
func (r *Router) Handle(path string, handler http.Handler) { r.handlers[path] = handler }

// HandlePrefix registers the handler of all paths that begin with path, which must end in a slash. Later registrations
// take precedence. HandlePrefix must not be called while requests are served.
func (r *Router) HandlePrefix(path string, handler http.Handler) {
	r.prefixes = append([]prefix{{path, handler}}, r.prefixes...)
}

// Documents returns the paths registered with Handle.
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
	// Complete is read before the catalog: if it is true, a resource that the catalog lacks does not exist.
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

// awaitTimeout bounds the time that a request for an unknown resource waits for the catalog.
const awaitTimeout = 3 * time.Second

// caughtUp waits until the catalog has every definition that was stored before the call, and reports whether that
// succeeded. A replica that lags behind the replica that established a definition must not respond with 404, because
// clients treat 404 as a deletion.
func (r *Router) caughtUp(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, awaitTimeout)
	defer cancel()
	return r.Await(ctx) == nil
}

// canBeCustom reports whether a group can have custom resources: its name contains a dot and it has no built-in kinds.
func (r *Router) canBeCustom(group string) bool {
	return strings.Contains(group, ".") && !r.Catalog.Current().BuiltIn(group)
}

// hasVersion reports whether the catalog has the group and version of the discovery document at path. It returns true
// for paths of other documents.
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

// unknown returns the handler for a resource that is not in the catalog. In groups of built-in kinds it responds with a
// Status, otherwise in plain text.
func (r *Router) unknown(info *upstream.RequestInfo, complete bool) http.Handler {
	if info.APIPrefix == "api" || r.Catalog.Current().BuiltIn(info.APIGroup) {
		return notFound{}
	}
	return missing(complete)
}

// missing returns the handler of paths that have no other handler.
func missing(complete bool) http.Handler {
	if complete {
		return http.NotFoundHandler()
	}
	return Incomplete{}
}

// Incomplete responds with 503, as kube-apiserver's notfoundhandler does before all paths are installed. A 404 would be
// wrong, because clients act on it: the garbage collector treats it as a deletion.
type Incomplete struct{}

// ServeHTTP implements http.Handler.
func (Incomplete) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	const retryAfter = 5 // seconds
	err := apierrors.NewServiceUnavailable(
		"the request has been made before all known HTTP paths have been installed, please try again")
	err.ErrStatus.Details = &metav1.StatusDetails{RetryAfterSeconds: retryAfter}
	request.WriteError(w, r, err)
}

// needsAll reports whether the document at path depends on custom resources. kube-apiserver serves incomplete documents
// while it starts; here such requests fail, because clients act on the absence of groups.
func (r *Router) needsAll(path string) bool {
	if path == "/apis" || strings.HasPrefix(path, "/openapi/") {
		return true
	}
	group, ok := strings.CutPrefix(path, "/apis/")
	group, _, _ = strings.Cut(group, "/")
	return ok && (group == "" || !r.Catalog.Current().BuiltIn(group))
}

// notFound responds with 404 and a generic Status.
type notFound struct{}

func (notFound) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	request.WriteError(w, r, request.Generic(http.StatusNotFound))
}

// readOnly reports whether kube-apiserver serves the document at path only for GET. It ignores the method of other
// documents.
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
