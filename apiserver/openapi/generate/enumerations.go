package main

import (
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/kubernetes/pkg/generated/openapi"
)

// enumerations returns the schemas of all Go types by name. They have the enum values, which the documents in the
// module lack.
func enumerations() map[string]spec.Schema {
	schemas := map[string]spec.Schema{}
	for name, definition := range openapi.GetOpenAPIDefinitions(func(string) spec.Ref { return spec.Ref{} }) {
		schemas[name] = definition.Schema
	}
	return schemas
}

// addEnumerations adds enum values and their descriptions to the schemas of a document.
func addEnumerations(schemas object, known map[string]spec.Schema) {
	for name := range schemas {
		if schema, ok := known[name]; ok {
			enumerate(at(schemas, name), &schema)
		}
	}
}

func enumerate(schema object, known *spec.Schema) {
	if len(known.Enum) > 0 {
		schema["enum"], schema["description"] = known.Enum, known.Description
		if known.Description == "" {
			delete(schema, "description")
		}
	}
	properties := at(schema, "properties")
	for name, property := range known.Properties {
		if at(properties, name) != nil {
			enumerate(at(properties, name), &property)
		}
	}
	if known.Items != nil && known.Items.Schema != nil && at(schema, "items") != nil {
		enumerate(at(schema, "items"), known.Items.Schema)
	}
	if known.AdditionalProperties != nil && known.AdditionalProperties.Schema != nil &&
		at(schema, "additionalProperties") != nil {
		enumerate(at(schema, "additionalProperties"), known.AdditionalProperties.Schema)
	}
}
