package handlers

import (
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/endpoints/request"

	"quorate.dev/apiserver/resource"
)

// routed reports whether a path of this shape exists for the resource, and whether the verb makes sense there. Which
// verbs the endpoint has is another question.
func routed(info *upstream.RequestInfo, d *resource.Definition, e *resource.Endpoint) (exists, sensible bool) {
	item := len(info.Parts) > 1
	inNamespace := info.Namespace != "" && (info.Resource != "namespaces" || info.APIGroup != "")
	switch {
	case len(info.Parts) > 3, inNamespace && !d.Namespaced:
		return false, false
	case item && d.Namespaced && !inNamespace:
		return false, false
	case item && info.Subresource == "" && !slices.ContainsFunc(e.Verbs, ofItems):
		return false, false
	case item:
		return true, info.Verb != "create" || info.Subresource != ""
	case d.Namespaced && !inNamespace:
		return true, info.Verb == "list" || info.Verb == "watch"
	}
	return true, info.Verb != "update" && info.Verb != "patch"
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

// notRouted is kube-apiserver's answer to a path of a resource that does not exist.
func notRouted() error { return generic(http.StatusNotFound) }

// notAllowed is kube-apiserver's answer to a method that a path does not have.
func (c *call) notAllowed() error {
	if c.target.Source == resource.Custom {
		return apierrors.NewMethodNotSupported(c.target.GroupResource(), c.record.Info.Verb)
	}
	return generic(http.StatusMethodNotAllowed)
}

// generic is an error that names no resource.
func generic(code int) *apierrors.StatusError {
	return apierrors.NewGenericServerResponse(code, "", schema.GroupResource{}, "", "", 0, false)
}
