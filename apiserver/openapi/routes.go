package openapi

import (
	"strings"
	"unicode"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/resource"
)

const (
	metaModels        = "io.k8s.apimachinery.pkg.apis.meta.v1."
	autoscalingModels = "io.k8s.api.autoscaling.v1."

	modelStatus        = metaModels + "Status"
	modelPatch         = metaModels + "Patch"
	modelDeleteOptions = metaModels + "DeleteOptions"
	modelListMeta      = metaModels + "ListMeta"
	modelScale         = autoscalingModels + "Scale"
)

// route is one operation on a custom resource.
type route struct {
	path        string
	method      string // HTTP method, such as "get"
	action      string // value of x-kubernetes-action, such as "deletecollection"
	id          string
	description string
	response    string   // model
	body        string   // model; empty if the operation has no body
	statuses    []string // status codes of success
}

// routes returns the operations on one version of a custom resource.
func routes(m resource.Match) []route {
	kind, list := crd.ModelName(m.Version.Kind), listModel(m)
	b := routeBuilder{match: m, prefix: "/apis/" + m.Group + "/" + m.Version.Name + "/"}
	var all []route
	collection := b.prefix + m.Plural
	if m.Namespaced {
		everywhere := b.route(operation{path: collection, method: "get", action: "list", verb: "list", response: list})
		everywhere.id = b.id("list", m.Kind+"ForAllNamespaces")
		all = append(all, everywhere)
		collection = b.prefix + "namespaces/{namespace}/" + m.Plural
	}
	one := collection + "/{name}"
	all = append(all,
		b.route(operation{path: collection, method: "get", action: "list", verb: "list", response: list}),
		b.route(operation{
			path: collection, method: "post", action: "post", verb: "create", response: kind, body: kind,
			more: []string{"201", "202"},
		}),
		b.route(operation{
			path: collection, method: "delete", action: "deletecollection", verb: "deletecollection", response: modelStatus,
		}),
		b.route(operation{path: one, method: "get", action: "get", verb: "read", response: kind}),
		b.route(operation{
			path: one, method: "put", action: "put", verb: "replace", response: kind, body: kind, more: []string{"201"},
		}),
		b.route(operation{
			path: one, method: "delete", action: "delete", verb: "delete", response: modelStatus,
			body: modelDeleteOptions, more: []string{"202"},
		}),
		b.route(operation{path: one, method: "patch", action: "patch", verb: "patch", response: kind, body: modelPatch}))
	for subresource := range m.Version.Endpoints {
		if subresource == "" {
			continue
		}
		model := kind
		if subresource == "scale" {
			model = modelScale
		}
		path := one + "/" + subresource
		all = append(all,
			b.route(operation{
				path: path, method: "get", action: "get", verb: "read", subresource: subresource, response: model,
			}),
			b.route(operation{
				path: path, method: "put", action: "put", verb: "replace", subresource: subresource, response: model,
				body: model, more: []string{"201"},
			}),
			b.route(operation{
				path: path, method: "patch", action: "patch", verb: "patch", subresource: subresource,
				response: model, body: modelPatch,
			}))
	}
	return all
}

// listModel returns the model of a custom resource's list.
func listModel(m resource.Match) string {
	return crd.ModelName(m.Version.Kind.GroupVersion().WithKind(m.ListKind))
}

type routeBuilder struct {
	match  resource.Match
	prefix string
}

// operation has the fields of a route that differ between operations.
type operation struct {
	path, method, action string
	verb                 string // verb in the id and the description
	subresource          string
	response, body       string   // models
	more                 []string // status codes of success in addition to 200
}

func (b routeBuilder) route(o operation) route {
	scope := ""
	if b.match.Namespaced {
		scope = "Namespaced"
	}
	return route{
		path: o.path, method: o.method, action: o.action, response: o.response, body: o.body,
		statuses:    append([]string{"200"}, o.more...),
		id:          b.id(o.verb, scope+b.match.Kind+capitalized(o.subresource)),
		description: describe(o.verb, o.subresource, b.match.Kind),
	}
}

// id returns an operationId, which consists of verb, group, version and object.
func (b routeBuilder) id(verb, object string) string {
	if verb == "deletecollection" {
		verb, object = "delete", "Collection"+object
	}
	group := strings.TrimSuffix(b.match.Group, ".k8s.io")
	return verb + identifier(group, true) + identifier(b.match.Version.Name, true) + identifier(object, true)
}

// tag returns the OpenAPI tag of a group version.
func tag(m resource.Match) string {
	return identifier(strings.TrimSuffix(m.Group, ".k8s.io"), false) + "_" + identifier(m.Version.Name, false)
}

// identifier removes the characters other than letters, digits and underscores, and capitalizes the characters after
// them.
func identifier(s string, capitalize bool) string {
	var b strings.Builder
	for i, r := range s {
		switch {
		case !unicode.IsLetter(r) && r != '_' && (i == 0 || !unicode.IsDigit(r)):
			capitalize = true
		case capitalize:
			b.WriteRune(unicode.ToUpper(r))
			capitalize = false
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

func capitalized(s string) string {
	if s == "" {
		return ""
	}
	return strings.ToUpper(s[:1]) + s[1:]
}

func describe(verb, subresource, kind string) string {
	if subresource != "" {
		subresource = " " + subresource + " of"
	}
	switch verb {
	case "list":
		return "list" + subresource + " objects of kind " + kind
	case "patch":
		return "partially update" + subresource + " the specified " + kind
	case "deletecollection":
		return "delete collection of" + subresource + " " + kind
	case "create", "delete":
		return verb + subresource + article(kind) + kind
	}
	return verb + subresource + " the specified " + kind
}

func article(noun string) string {
	switch {
	case strings.HasSuffix(noun, "s") && !strings.HasSuffix(noun, "ss"):
		return " " // a plural has no article
	case noun != "" && strings.ContainsAny(strings.ToLower(noun[:1]), "aeiou"):
		return " an "
	}
	return " a "
}
