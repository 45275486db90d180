package handlers

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	upstream "k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// pathShape distinguishes the paths of a resource that kube-apiserver registers routes for.
type pathShape int

const (
	invalidPath          pathShape = iota // which no resource has
	itemOutsideNamespace                  // of a namespaced resource, without its namespace
	itemPath
	subresourcePath
	allNamespacesPath // the collection of a namespaced resource in all namespaces
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

// route lists what kube-apiserver serves under paths of one shape.
type route struct {
	// needs are verbs of which the endpoint must have one for the path to exist; nil: the path always exists.
	needs []string
	// builtIn and custom select the verbs that make sense, for built-in kinds and for custom resources. Other verbs get
	// 405 for built-in kinds and 404 for custom resources. nil: the path does not exist.
	builtIn, custom func(verb string) bool
}

// itemVerbs are the verbs of single objects.
var itemVerbs = []string{"get", "update", "patch", "delete"}

// routes are the routes of all shapes, in the order of pathShape.
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

// routed reports whether the path exists for the resource, and whether the verb makes sense there. The endpoint may
// lack the verb nevertheless.
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

// routedByVerb reports whether a path with a verb in it exists. Such a request was authorized for that verb regardless
// of its method, so that serving anything but that verb would bypass authorization. Built-in kinds have such paths for
// watches only, and not for subresources; kube-apiserver serves custom resources by the verb alone.
func routedByVerb(info *upstream.RequestInfo, d *resource.Definition, e *resource.Endpoint) bool {
	watches := info.Verb == "watch" && info.Subresource == "" && slices.Contains(e.Verbs, "watch")
	return e.Connect == nil && (watches || d.Source == resource.Custom)
}

// methodFits reports whether the request's method fits its verb: only GET reads.
func methodFits(r *http.Request, verb string) bool {
	switch verb {
	case "get", "list", "watch":
		return r.Method == http.MethodGet
	}
	return true
}

// errNoName is the error for a path with an empty name.
var errNoName = apierrors.NewBadRequest("name must be provided")

// checkRoute returns the error of a request that kube-apiserver's routes reject before any handler, because of its
// method, the media type of its body, or the media types it accepts.
func (c *call) checkRoute(sensible bool) error {
	info := &c.record.Info
	unnamed := info.Subresource != "" && info.Name == ""
	switch {
	case unnamed && info.Verb == "list" && slices.Contains(c.target.Endpoint.Verbs, "get"):
		return errNoName
	case !sensible || !c.allowed():
		return c.notAllowed()
	case c.target.Source == resource.Custom: // kube-apiserver checks the verb only
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

// notRouted responds to a path that does not exist. For custom resources, kube-apiserver has no routes but crdHandler,
// whose errors differ.
func notRouted(w http.ResponseWriter, r *http.Request, match resource.Match, info *upstream.RequestInfo) {
	switch {
	case match.Source == resource.BuiltIn:
		request.WriteError(w, r, request.Generic(http.StatusNotFound))
	case info.Subresource != "":
		request.WriteError(w, r, apierrors.NewNotFound(match.GroupResource(), info.Name))
	default:
		http.NotFound(w, r)
	}
}

// notAllowed returns kube-apiserver's error for a method that a path does not have.
func (c *call) notAllowed() error {
	if c.target.Source == resource.Custom {
		return apierrors.NewMethodNotSupported(c.target.GroupResource(), c.record.Info.Verb)
	}
	return request.Generic(http.StatusMethodNotAllowed)
}
