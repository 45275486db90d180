package request

import (
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/api/validate/content"
	metainternalversion "k8s.io/apimachinery/pkg/apis/meta/internalversion"
	metainternalversionscheme "k8s.io/apimachinery/pkg/apis/meta/internalversion/scheme"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
)

// Resolve sets Info from the request line, by the rules of kube-apiserver's RequestInfoFactory. After an error Info is
// incomplete.
//
// The path of a resource is /api/{version}/... or /apis/{group}/{version}/..., followed by [watch|proxy/]
// [namespaces/{namespace}/]{resource}[/{name}[/{subresource}/...]]. All other paths are non-resource paths.
func (r *Record) Resolve(method string) error {
	info := &r.Info
	info.Path, info.Verb = r.url.Path, lowerMethod(method)
	parts := r.split(info.Path)
	if len(parts) < 3 || (parts[0] != "api" && parts[0] != "apis") {
		return nil
	}
	info.APIPrefix, parts = parts[0], parts[1:]
	if info.APIPrefix == "apis" {
		if len(parts) < 3 {
			return nil
		}
		info.APIGroup, parts = parts[0], parts[1:]
	}
	info.IsResourceRequest = true
	info.APIVersion, parts = parts[0], parts[1:]

	r.VerbInPath = parts[0] == "watch" || parts[0] == "proxy"
	if r.VerbInPath {
		if len(parts) < 2 {
			return fmt.Errorf("unable to determine kind and namespace from url, %v", r.url)
		}
		info.Verb, parts = parts[0], parts[1:]
	} else {
		info.Verb = resourceVerb(method)
	}
	r.resolveTarget(parts)
	r.resolveCollection()
	if !r.VerbInPath {
		r.resolveSelectors()
	}
	return nil
}

// resolveTarget sets the namespace, resource, name and subresource from the path segments that follow the version.
func (r *Record) resolveTarget(parts []string) {
	info := &r.Info
	if parts[0] == "namespaces" && len(parts) > 1 {
		info.Namespace = parts[1]
		// The next segment is a namespaced resource, unless it is a subresource of the namespace.
		if len(parts) > 2 && parts[2] != "status" && parts[2] != "finalize" {
			parts = parts[2:]
		}
	}
	info.Parts = parts
	info.Resource = parts[0]
	if len(parts) >= 2 {
		info.Name = parts[1]
	}
	if len(parts) >= 3 && info.Verb != "proxy" {
		info.Subresource = parts[2]
	}
}

// resolveCollection changes the verbs get and delete of a path without a name to list, watch and deletecollection.
func (r *Record) resolveCollection() {
	info := &r.Info
	if info.Name != "" {
		return
	}
	switch info.Verb {
	case "get":
		info.Verb = "list"
		if r.url.RawQuery == "" {
			return
		}
		if WantsWatch(r.Query()) {
			info.Verb = "watch"
		}
		info.Name = r.selectedName()
	case "delete":
		info.Verb = "deletecollection"
	}
}

// selectedName returns the name that a field selector on metadata.name requires, or "".
func (r *Record) selectedName() string {
	selector := r.Query()["fieldSelector"]
	if len(selector) == 0 || !strings.Contains(selector[0], "metadata.name") {
		return ""
	}
	options := metainternalversion.ListOptions{}
	err := metainternalversionscheme.ParameterCodec.DecodeParameters(r.Query(), metav1.SchemeGroupVersion, &options)
	if err != nil || options.FieldSelector == nil {
		// The handler rejects invalid options with a Status.
		return ""
	}
	name, found := options.FieldSelector.RequiresExactMatch("metadata.name")
	if !found || len(content.IsPathSegmentName(name)) > 0 {
		return ""
	}
	return name
}

// resolveSelectors sets the selectors that authorization uses.
func (r *Record) resolveSelectors() {
	info := &r.Info
	if r.url.RawQuery == "" || (info.Verb != "list" && info.Verb != "watch" && info.Verb != "deletecollection") {
		return
	}
	if values := r.Query()["fieldSelector"]; len(values) > 0 {
		info.FieldSelector = values[0]
	}
	if values := r.Query()["labelSelector"]; len(values) > 0 {
		info.LabelSelector = values[0]
	}
}

// WantsWatch reports whether the parameter watch is set, and neither 0 nor false.
func WantsWatch(query map[string][]string) bool {
	values := query["watch"]
	return len(values) > 0 && values[0] != "0" && !strings.EqualFold(values[0], "false")
}

// split returns the segments of a path without leading and trailing slashes, in the record's own array if they fit.
func (r *Record) split(path string) []string {
	path = strings.Trim(path, "/")
	if path == "" {
		return nil
	}
	parts := r.parts[:0]
	for {
		part, rest, more := strings.Cut(path, "/")
		parts = append(parts, part)
		if !more {
			return parts
		}
		path = rest
	}
}

func lowerMethod(method string) string {
	switch method {
	case http.MethodGet:
		return "get"
	case http.MethodPost:
		return "post"
	}
	return strings.ToLower(method)
}

func resourceVerb(method string) string {
	switch method {
	case http.MethodPost:
		return "create"
	case http.MethodGet, http.MethodHead:
		return "get"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		return "delete"
	}
	return ""
}

// IsLongRunning reports whether a request has no deadline, by the rules of kube-apiserver's
// BasicLongRunningRequestCheck.
func IsLongRunning(info *upstream.RequestInfo) bool {
	switch info.Verb {
	case "watch", "proxy":
		return true
	}
	if !info.IsResourceRequest {
		return strings.HasPrefix(info.Path, "/debug/pprof/")
	}
	switch info.Subresource {
	case "attach", "exec", "proxy", "log", "portforward":
		return true
	}
	return false
}
