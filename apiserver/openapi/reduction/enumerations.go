package reduction

import "strings"

// enumerationHeader begins the part of a description that lists the values of an enumeration. kube-openapi's generator
// writes it.
const enumerationHeader = "Possible enum values:"

// RemoveEnumerationsV2 removes the enumerations from the definitions of a version 2 document, as kube-apiserver does
// with the feature gate OpenAPIEnums=false. The parameters of operations keep theirs.
func RemoveEnumerationsV2(swagger Object) { removeFromEach(swagger["definitions"]) }

// RemoveEnumerationsV3 is RemoveEnumerationsV2 for the schemas of a version 3 document.
func RemoveEnumerationsV3(document Object) {
	components, _ := document["components"].(Object)
	removeFromEach(components["schemas"])
}

// removeFromEach removes the enumerations of all schemas of an object that maps names to schemas, or of a list.
func removeFromEach(schemas any) {
	switch s := schemas.(type) {
	case Object:
		for _, schema := range s {
			removeEnumerations(schema)
		}
	case []any:
		for _, schema := range s {
			removeEnumerations(schema)
		}
	}
}

// removeEnumerations removes the enumerations of a schema and of the schemas in it. It visits only keywords that
// contain schemas: a property may itself be named enum.
func removeEnumerations(value any) {
	schema, ok := value.(Object)
	if !ok {
		return
	}
	delete(schema, "enum")
	if description, ok := schema["description"].(string); ok {
		if before, _, found := strings.Cut(description, enumerationHeader); found {
			schema["description"] = strings.TrimSpace(before)
		}
		if schema["description"] == "" {
			delete(schema, "description")
		}
	}
	for _, keyword := range []string{"properties", "allOf", "anyOf", "oneOf"} {
		removeFromEach(schema[keyword])
	}
	for _, keyword := range []string{"items", "additionalProperties", "not"} {
		removeEnumerations(schema[keyword])
	}
}
