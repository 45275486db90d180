package openapi

import (
	"encoding/json"
	"fmt"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kube-openapi/pkg/validation/spec"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/deflate"
	"quorate.dev/apiserver/resource"
)

// object is a JSON object.
type object = map[string]any

// template has the parts of built-in documents that the documents of custom resources share. The generator writes it.
type template struct {
	V2 dialectTemplate `json:"v2"`
	V3 dialectTemplate `json:"v3"`

	// shared has the members of version 3 schemas that all documents have; sharedScaled has the members for scales in
	// addition.
	shared, sharedScaled deflate.Part
}

type dialectTemplate struct {
	Parameters map[string][]object        `json:"parameters"`
	Schemas    map[string]json.RawMessage `json:"schemas"`
}

// compress sets shared and sharedScaled, and drops the schemas that they are made of.
func (t *template) compress() (err error) {
	schemas, scaled := object{}, object{}
	for name, schema := range t.V3.Schemas {
		scaled[name] = schema
		if !strings.HasPrefix(name, autoscalingModels) {
			schemas[name] = schema
		}
	}
	t.V2.Schemas, t.V3.Schemas = nil, nil
	if t.shared, err = members(schemas); err != nil {
		return err
	}
	t.sharedScaled, err = members(scaled)
	return err
}

// writer builds the paths and schemas of custom resources for OpenAPI version 2 or 3.
type writer struct {
	dialect  crd.Dialect
	template dialectTemplate
	paths    object
	schemas  object
	// renamed has the new names of models whose names collide with built-in models.
	renamed map[string]string
}

func newWriter(dialect crd.Dialect, t *template) *writer {
	w := &writer{dialect: dialect, template: t.V3, paths: object{}, schemas: object{}}
	if dialect == crd.V2 {
		w.template = t.V2
	}
	return w
}

// add adds one version of a custom resource.
func (w *writer) add(m resource.Match) error {
	if err := w.addSchemas(m); err != nil {
		return err
	}
	for _, r := range routes(m) {
		item, ok := w.paths[r.path].(object)
		if !ok {
			item = object{"parameters": w.pathParameters(r.path, m)}
			w.paths[r.path] = item
		}
		item[r.method] = w.operation(r, m)
	}
	return nil
}

// pathParameters returns the parameters of all operations on a path.
func (w *writer) pathParameters(path string, m resource.Match) []object {
	if m.Namespaced && !strings.Contains(path, "{namespace}") {
		return w.template.Parameters["everywhere"]
	}
	var parameters []object
	if strings.Contains(path, "{name}") {
		parameters = append(parameters, w.nameParameter(m.Kind))
	}
	for _, p := range w.template.Parameters["collection"] {
		if m.Namespaced || !hasName(p, "namespace") {
			parameters = append(parameters, p)
		}
	}
	return parameters
}

func (w *writer) nameParameter(kind string) object {
	parameter := object{"name": "name", "in": "path", "description": "name of the " + kind, "required": true}
	if w.dialect == crd.V2 {
		parameter["type"], parameter["uniqueItems"] = "string", true
	} else {
		parameter["schema"] = object{"type": "string", "uniqueItems": true}
	}
	return parameter
}

// hasName reports whether a parameter, or the shared parameter that it references, has a name.
func hasName(parameter object, name string) bool {
	reference, _ := parameter["$ref"].(string)
	return parameter["name"] == name || strings.HasPrefix(reference, "#/parameters/"+name+"-")
}

// parameters returns the parameters of one operation.
func (w *writer) parameters(r route, m resource.Match) []object {
	if m.Namespaced && !strings.Contains(r.path, "{namespace}") {
		return nil // pathParameters returns all parameters
	}
	switch r.action {
	case "deletecollection":
		return w.template.Parameters["list"]
	case "get":
		for _, p := range w.template.Parameters["list"] {
			if hasName(p, "resourceVersion") {
				return []object{p}
			}
		}
	}
	var parameters []object
	for _, p := range w.template.Parameters[r.action] {
		if p["name"] != "body" {
			parameters = append(parameters, p)
		}
	}
	return parameters
}

func (w *writer) operation(r route, m resource.Match) object {
	kind := m.Version.Kind
	operation := object{
		"tags": []string{tag(m)}, "description": r.description, "operationId": r.id,
		"x-kubernetes-action":             r.action,
		"x-kubernetes-group-version-kind": object{"group": kind.Group, "version": kind.Version, "kind": kind.Kind},
	}
	parameters := w.parameters(r, m)
	consumed := []string{"application/json", "application/yaml"}
	if r.method == "patch" {
		consumed = []string{"application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"}
	}
	if w.dialect == crd.V2 {
		operation["consumes"], operation["produces"], operation["schemes"] = consumed, []string{"application/json",
			"application/yaml"}, []string{"https"}
		if r.action == "post" || r.action == "put" {
			parameters = append([]object{{"name": "body", "in": "body", "required": true, "schema": w.reference(r.body)}},
				parameters...)
		}
	} else if r.body != "" {
		body := object{"content": w.content(r.body, consumed)}
		if r.action != "delete" {
			body["required"] = true
		}
		operation["requestBody"] = body
	}
	if parameters != nil {
		operation["parameters"] = parameters
	}
	operation["responses"] = w.responses(r)
	return operation
}

func (w *writer) responses(r route) object {
	responses := object{"401": object{"description": "Unauthorized"}}
	meaning := map[string]string{"200": "OK", "201": "Created", "202": "Accepted"}
	for _, status := range r.statuses {
		response := object{"description": meaning[status]}
		if w.dialect == crd.V2 {
			response["schema"] = w.reference(r.response)
		} else {
			response["content"] = w.content(r.response, []string{"application/json", "application/yaml"})
		}
		responses[status] = response
	}
	return responses
}

func (w *writer) content(model string, mediaTypes []string) object {
	content := object{}
	for _, mediaType := range mediaTypes {
		content[mediaType] = object{"schema": w.reference(model)}
	}
	return content
}

func (w *writer) reference(model string) object {
	return object{"$ref": w.dialect.Reference(w.name(model))}
}

// name returns the name of a model in the document, which may be renamed.
func (w *writer) name(model string) string {
	if renamed, ok := w.renamed[model]; ok {
		return renamed
	}
	return model
}

// addSchemas adds the schemas of a custom resource and its list.
func (w *writer) addSchemas(m resource.Match) error {
	kind := m.Version.Kind
	schema, err := crd.Schema(m.Version, w.dialect)
	if err != nil {
		return fmt.Errorf("schema of %s: %w", kind, err)
	}
	list := w.listSchema(m)
	if fields := crd.SelectableFields(m.Version); len(fields) > 0 {
		var selectable []any
		for _, field := range fields {
			selectable = append(selectable, object{"fieldPath": field})
		}
		schema.AddExtension("x-kubernetes-selectable-fields", selectable)
		list.AddExtension("x-kubernetes-selectable-fields", selectable)
	}
	w.schemas[w.name(crd.ModelName(kind))] = schema
	w.schemas[w.name(listModel(m))] = list
	return nil
}

func (w *writer) listSchema(m resource.Match) *spec.Schema {
	items := spec.ArrayProperty(spec.RefSchema(w.dialect.Reference(w.name(crd.ModelName(m.Version.Kind))))).
		WithDescription("List of " + m.Plural +
			". More info: https://git.k8s.io/community/contributors/devel/sig-architecture/api-conventions.md")
	list := new(spec.Schema).Typed("object", "").
		WithDescription(m.ListKind+" is a list of "+m.Kind).
		WithRequired("items").
		SetProperty("items", *items).
		SetProperty("metadata",
			*w.dialect.Described(modelListMeta, metav1.PartialObjectMetadataList{}.SwaggerDoc()["metadata"]))
	crd.AddTypeProperties(list)
	list.AddExtension("x-kubernetes-group-version-kind", []any{object{
		"group": m.Group, "version": m.Version.Name, "kind": m.ListKind,
	}})
	return list
}
