package handlers

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	upstream "k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// pathShape classifies the paths of a resource as kube-apiserver's routes do.
type pathShape int

const (
	// invalidPath is a path that no resource has, such as a namespace in the path of a cluster-scoped resource.
	invalidPath pathShape = iota
	// itemOutsideNamespace is the path of an object of a namespaced resource without the namespace.
	itemOutsideNamespace
	itemPath
	subresourcePath
	// allNamespacesPath is the collection of a namespaced resource in all namespaces.
	allNamespacesPath
	collectionPath
)

// shapeOf returns the shape of a request's path.
func shapeOf(info *upstream.RequestInfo, d *resource.Definition, e *resource.Endpoint) pathShape {
	const maxParts = 3 // resource, name, subresource
	tooLong := len(info.Parts) > maxParts && d.Source == resource.BuiltIn && (e.Connect == nil || !e.Connect.Path)
	// The namespace in the path of a Namespace is its name.
	inNamespace := info.Namespace != "" && (info.Resource != "namespaces" || info.APIGroup != "")
	outside := d.Namespaced && !inNamespace
	item := len(info.Parts) > 1
	switch {
	case tooLong, inNamespace && !d.Namespaced:
		return invalidPath
	case item && outside:
		return itemOutsideNamespace
	case item && info.Subresource != "":
		return subresourcePath
	case item:
		return itemPath
	case outside:
		return allNamespacesPath
	}
	return collectionPath
}

// route describes which requests kube-apiserver serves on the paths of one shape.
type route struct {
	// needs lists verbs. The path exists if the endpoint supports at least one of them, or if the list is nil.
	needs []string
	// builtIn and custom report whether a verb makes sense on the path, for built-in kinds and for custom resources.
	// Other verbs get 405 for built-in kinds and 404 for custom resources. A nil function means that the path does not
	// exist.
	builtIn, custom func(verb string) bool
}

// itemVerbs are the verbs that are served on the path of a single object.
var itemVerbs = []string{"get", "update", "patch", "delete"}

// routes has the route of each pathShape.
var routes = [...]route{
	invalidPath:          {},
	itemOutsideNamespace: {custom: only("watch")},
	itemPath:             {needs: itemVerbs, builtIn: allExcept("create"), custom: allExcept()},
	subresourcePath:      {builtIn: allExcept(), custom: allExcept()},
	allNamespacesPath:    {needs: []string{"list"}, builtIn: only("list", "watch"), custom: only("list", "watch")},
	collectionPath:       {builtIn: allExcept("update", "patch"), custom: allExcept()},
}

func only(verbs ...string) func(string) bool {
	return func(verb string) bool { return slices.Contains(verbs, verb) }
}

func allExcept(verbs ...string) func(string) bool {
	return func(verb string) bool { return !slices.Contains(verbs, verb) }
}

// routed reports whether the path exists for the resource, and whether the verb makes sense on it. The endpoint may
// nevertheless not support a sensible verb.
func routed(info *upstream.RequestInfo, d *resource.Definition, e *resource.Endpoint) (exists, sensible bool) {
	r := routes[shapeOf(info, d, e)]
	verbs := r.builtIn
	if d.Source == resource.Custom {
		verbs = r.custom
	}
	if verbs == nil || (r.needs != nil && !slices.ContainsFunc(e.Verbs, only(r.needs...))) {
		return false, false
	}
	sensible = verbs(info.Verb)
	return sensible || d.Source == resource.BuiltIn, sensible
}

// routedByVerb reports whether a path exists that contains the verb, such as /api/v1/watch/pods. Such a request was
// authorized for the verb in its path regardless of its method, so that serving any other verb would bypass
// authorization. Built-in kinds have such paths for watches only, and not for subresources; kube-apiserver selects the
// handler of custom resources by the verb alone.
func routedByVerb(info *upstream.RequestInfo, d *resource.Definition, e *resource.Endpoint) bool {
	watches := info.Verb == "watch" && info.Subresource == "" && slices.Contains(e.Verbs, "watch")
	return e.Connect == nil && (watches || d.Source == resource.Custom)
}

// methodFits reports whether the request's method may have the verb: get, list and watch require the method GET.
func methodFits(r *http.Request, verb string) bool {
	switch verb {
	case "get", "list", "watch":
		return r.Method == http.MethodGet
	}
	return true
}

// errNoName is the error for a path with an empty name.
var errNoName = apierrors.NewBadRequest("name must be provided")

// checkRoute returns the error of a request that kube-apiserver's routes reject before any handler runs, because of its
// method, the media type of its body, or the media types that it accepts.
func (c *call) checkRoute(sensible bool) error {
	info := &c.record.Info
	unnamed := info.Subresource != "" && info.Name == ""
	switch {
	case unnamed && info.Verb == "list" && slices.Contains(c.target.Endpoint.Verbs, "get"):
		return errNoName
	case !sensible || !c.allowed():
		return c.notAllowed()
	// kube-apiserver checks only the verb of requests for custom resources.
	case c.target.Source == resource.Custom:
		return nil
	case !methodFits(c.r, info.Verb):
		return c.notAllowed()
	}
	if info.Verb == "patch" {
		if _, err := c.patchType(); err != nil {
			return err
		}
	}
	return request.Produce(c.r, produced(isCollection(c.r))...)
}

// refuse responds with the error of checkRoute.
func (c *call) refuse(err error) {
	if c.target.Source == resource.Custom {
		request.WriteErrorWithoutCBOR(c.w, c.r, err)
		return
	}
	request.WriteError(c.w, c.r, err)
}

// notRouted responds to a request for a path that does not exist. Custom resources have no routes in kube-apiserver;
// the errors of their paths are crdHandler's.
func notRouted(w http.ResponseWriter, r *http.Request, match resource.Match, info *upstream.RequestInfo) {
	switch {
	case match.Source == resource.BuiltIn:
		request.WriteError(w, r, request.Generic(http.StatusNotFound))
	case info.Subresource != "":
		request.WriteErrorWithoutCBOR(w, r, apierrors.NewNotFound(match.GroupResource(), info.Name))
	default:
		http.NotFound(w, r)
	}
}

// notAllowed returns kube-apiserver's error for a verb that is not served on the path.
func (c *call) notAllowed() error {
	if c.target.Source == resource.Custom {
		return apierrors.NewMethodNotSupported(c.target.GroupResource(), c.record.Info.Verb)
	}
	return request.Generic(http.StatusMethodNotAllowed)
}
