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
	method      string // "get"
	action      string // "deletecollection"
	id          string
	description string
	response    string   // model
	body        string   // model; empty: none
	statuses    []string // of success
}

// routes returns the operations on a custom resource in one of its versions.
func routes(m resource.Match) []route {
	kind, list := crd.ModelName(m.Version.Kind), listModel(m)
	b := routeBuilder{match: m, prefix: "/apis/" + m.Group + "/" + m.Version.Name + "/"}
	var all []route
	collection := b.prefix + m.Plural
	if m.Namespaced {
		everywhere := b.route(collection, "get", "list", "list", "", list, "")
		everywhere.id = b.id("list", m.Kind+"ForAllNamespaces")
		all = append(all, everywhere)
		collection = b.prefix + "namespaces/{namespace}/" + m.Plural
	}
	one := collection + "/{name}"
	all = append(all,
		b.route(collection, "get", "list", "list", "", list, ""),
		b.route(collection, "post", "post", "create", "", kind, kind, "201", "202"),
		b.route(collection, "delete", "deletecollection", "deletecollection", "", modelStatus, ""),
		b.route(one, "get", "get", "read", "", kind, ""),
		b.route(one, "put", "put", "replace", "", kind, kind, "201"),
		b.route(one, "delete", "delete", "delete", "", modelStatus, modelDeleteOptions, "202"),
		b.route(one, "patch", "patch", "patch", "", kind, modelPatch))
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
			b.route(path, "get", "get", "read", subresource, model, ""),
			b.route(path, "put", "put", "replace", subresource, model, model, "201"),
			b.route(path, "patch", "patch", "patch", subresource, model, modelPatch))
	}
	return all
}

// listModel is the model of a custom resource's list.
func listModel(m resource.Match) string {
	return crd.ModelName(m.Version.Kind.GroupVersion().WithKind(m.ListKind))
}

type routeBuilder struct {
	match  resource.Match
	prefix string
}

func (b routeBuilder) route(path, method, action, verb, subresource, response, body string, more ...string) route {
	scope := ""
	if b.match.Namespaced {
		scope = "Namespaced"
	}
	return route{
		path: path, method: method, action: action, response: response, body: body,
		statuses:    append([]string{"200"}, more...),
		id:          b.id(verb, scope+b.match.Kind+capitalized(subresource)),
		description: describe(verb, subresource, b.match.Kind),
	}
}

// id names an operation: the verb, group and version, then what it is done to.
func (b routeBuilder) id(verb, object string) string {
	if verb == "deletecollection" {
		verb, object = "delete", "Collection"+object
	}
	group := strings.TrimSuffix(b.match.Group, ".k8s.io")
	return verb + identifier(group, true) + identifier(b.match.Version.Name, true) + identifier(object, true)
}

// tag names the group and version.
func tag(m resource.Match) string {
	return identifier(strings.TrimSuffix(m.Group, ".k8s.io"), false) + "_" + identifier(m.Version.Name, false)
}

// identifier leaves out what is no letter, digit or underscore and capitalizes what follows.
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
		return " " // a plural has none
	case noun != "" && strings.ContainsAny(strings.ToLower(noun[:1]), "aeiou"):
		return " an "
	}
	return " a "
}
