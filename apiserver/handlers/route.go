package handlers

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	upstream "k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// routed reports whether a path of this shape exists for the resource, and whether the verb makes sense there. Which
// verbs the endpoint has is another question.
func routed(info *upstream.RequestInfo, d *resource.Definition, e *resource.Endpoint) (exists, sensible bool) {
	item := len(info.Parts) > 1
	inNamespace := info.Namespace != "" && (info.Resource != "namespaces" || info.APIGroup != "")
	switch {
	case len(info.Parts) > 3 && d.Source == resource.BuiltIn && (e.Connect == nil || !e.Connect.Path), inNamespace && !d.Namespaced:
		return false, false
	case item && d.Namespaced && !inNamespace:
		watches := d.Source == resource.Custom && info.Verb == "watch"
		return watches, watches
	case item && info.Subresource == "" && !slices.ContainsFunc(e.Verbs, ofItems):
		return false, false
	case item:
		return true, info.Verb != "create" || info.Subresource != "" || d.Source == resource.Custom
	case d.Namespaced && !inNamespace && !slices.Contains(e.Verbs, "list"):
		return false, false
	case d.Namespaced && !inNamespace:
		reads := info.Verb == "list" || info.Verb == "watch"
		return reads || d.Source != resource.Custom, reads
	}
	return true, d.Source == resource.Custom || (info.Verb != "update" && info.Verb != "patch")
}

// routedByVerb reports whether a path exists that has the verb in it. Such a request was authorized for that verb whatever
// its method is, so it must lead to nothing else: there are only watches, of what can be watched, and no subresources.
// kube-apiserver has no routes of custom resources, whose verbs do what they are called.
func routedByVerb(info *upstream.RequestInfo, d *resource.Definition, e *resource.Endpoint) bool {
	watches := info.Verb == "watch" && info.Subresource == "" && slices.Contains(e.Verbs, "watch")
	return e.Connect == nil && (watches || d.Source == resource.Custom)
}

// ofItems reports whether a verb is done to one object.
func ofItems(verb string) bool {
	switch verb {
	case "get", "update", "patch", "delete":
		return true
	}
	return false
}

// reads reports whether a verb goes with the request's method: only GET reads.
func reads(r *http.Request, verb string) bool {
	switch verb {
	case "get", "list", "watch":
		return r.Method == http.MethodGet
	}
	return true
}

// errNoName is for a path that leaves its name empty.
var errNoName = apierrors.NewBadRequest("name must be provided")

// refused is why kube-apiserver's routes, before any handler, refuse a request for an endpoint that exists: its method,
// the type of its body, the types that it accepts.
func (c *call) refused(sensible bool) error {
	info := &c.record.Info
	switch {
	case info.Subresource != "" && info.Name == "" && info.Verb == "list" && slices.Contains(c.target.Endpoint.Verbs, "get"):
		return errNoName
	case !sensible || !c.allowed():
		return c.notAllowed()
	case c.target.Source == resource.Custom: // of which kube-apiserver looks at the verb alone
		return nil
	case !reads(c.r, info.Verb):
		return c.notAllowed()
	}
	if info.Verb == "patch" {
		if _, err := c.patchType(); err != nil {
			return err
		}
	}
	return request.Produce(c.r, produced(isCollection(c.r))...)
}

// notRouted answers a path of a resource that does not exist. kube-apiserver has no routes for custom resources and
// answers for them in other words.
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

// notAllowed is kube-apiserver's answer to a method that a path does not have.
func (c *call) notAllowed() error {
	if c.target.Source == resource.Custom {
		return apierrors.NewMethodNotSupported(c.target.GroupResource(), c.record.Info.Verb)
	}
	return request.Generic(http.StatusMethodNotAllowed)
}
