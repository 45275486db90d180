// Package reduction reduces OpenAPI documents, decoded as JSON values, to the served resources, and encodes them with
// insertion points. It also adds API versions that upstream's documents lack. The generators and package openapi use
// it.
package reduction

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Object is a JSON object.
type Object = map[string]any

// Resource returns the resource of a path, as group/version/plural with an empty group for the core group. It returns
// false for the paths of groups and group versions, and for paths outside the API.
func Resource(path string) (string, bool) {
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case parts[0] == "api" && len(parts) > 2:
		parts = append([]string{""}, parts[1:]...)
	case parts[0] == "apis" && len(parts) > 3:
		parts = parts[1:]
	default:
		return "", false
	}
	version, rest := strings.Join(parts[:2], "/"), parts[2:]
	if rest[0] == "watch" && len(rest) > 1 {
		rest = rest[1:]
	}
	if rest[0] == "namespaces" && len(rest) > 2 && rest[1] == "{namespace}" {
		rest = rest[2:]
	}
	return version + "/" + rest[0], true
}

// Resources returns the resources of paths, sorted.
func Resources(paths Object) []string {
	found := map[string]bool{}
	for path := range paths {
		if resource, ok := Resource(path); ok {
			found[resource] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// KeepPaths removes the paths of resources that are not served, and of groups and group versions without served
// resources. A version 2 document has all paths, a version 3 document the paths of one group version.
func KeepPaths(paths Object, served func(resource string) bool) {
	present := map[string]bool{}
	for _, resource := range Resources(paths) {
		if served(resource) {
			parts := strings.Split(resource, "/")
			present[parts[0]], present[parts[0]+"/"+parts[1]] = true, true
		}
	}
	for path := range paths {
		resource, about := Resource(path)
		if about && !served(resource) || !about && !presentGroup(path, present) {
			delete(paths, path)
		}
	}
}

// presentGroup reports whether a path without a resource belongs to no group, or to one that is present.
func presentGroup(path string, present map[string]bool) bool {
	name, ok := strings.CutPrefix(path, "/apis/")
	if name = strings.TrimSuffix(name, "/"); !ok || name == "" {
		return true
	}
	return present[name]
}

// KeepReached removes the values that from does not reference, directly or through other values. References begin
// with prefix.
func KeepReached(from any, values Object, prefix string) {
	reached := map[string]bool{}
	reach(from, values, prefix, reached)
	for name := range values {
		if !reached[name] {
			delete(values, name)
		}
	}
}

// reach marks as reached the values that a value references, directly or through other values.
func reach(value any, values Object, prefix string, reached map[string]bool) {
	switch v := value.(type) {
	case Object:
		reference, _ := v["$ref"].(string)
		if name, ok := strings.CutPrefix(reference, prefix); ok && !reached[name] {
			reached[name] = true
			reach(values[name], values, prefix, reached)
		}
		for _, child := range v {
			reach(child, values, prefix, reached)
		}
	case []any:
		for _, child := range v {
			reach(child, values, prefix, reached)
		}
	}
}

// V2 reduces a version 2 document to the served resources.
func V2(swagger Object, served func(resource string) bool) error {
	paths, ok := swagger["paths"].(Object)
	definitions, ok2 := swagger["definitions"].(Object)
	parameters, ok3 := swagger["parameters"].(Object)
	if !ok || !ok2 || !ok3 {
		return fmt.Errorf("paths, definitions or parameters are no objects")
	}
	KeepPaths(paths, served)
	KeepReached(paths, parameters, "#/parameters/")
	KeepReached(Object{"paths": paths, "parameters": parameters}, definitions, "#/definitions/")
	return nil
}

// V3 reduces a version 3 document to the served resources.
func V3(document Object, served func(resource string) bool) error {
	paths, ok := document["paths"].(Object)
	components, _ := document["components"].(Object)
	schemas, ok2 := components["schemas"].(Object)
	if !ok || !ok2 {
		return fmt.Errorf("paths or schemas are no objects")
	}
	KeepPaths(paths, served)
	KeepReached(paths, schemas, "#/components/schemas/")
	return nil
}

// Places has byte offsets in an encoded version 2 document where members of paths and of definitions can be inserted.
type Places struct {
	Paths       int `json:"paths"`
	Definitions int `json:"definitions"`
}

// EncodeV2 encodes a version 2 document, and returns its insertion points.
func EncodeV2(swagger Object) ([]byte, Places, error) {
	paths, err := json.Marshal(swagger["paths"])
	if err != nil {
		return nil, Places{}, fmt.Errorf("encode paths: %w", err)
	}
	definitions, err := json.Marshal(swagger["definitions"])
	if err != nil {
		return nil, Places{}, fmt.Errorf("encode definitions: %w", err)
	}
	rest := maps.Clone(swagger)
	delete(rest, "paths")
	delete(rest, "definitions")
	tail, err := json.Marshal(rest)
	if err != nil {
		return nil, Places{}, fmt.Errorf("encode swagger: %w", err)
	}
	var at Places
	encoded := slices.Concat([]byte(`{"paths":`), paths)
	at.Paths = len(encoded) - 1
	encoded = slices.Concat(encoded, []byte(`,"definitions":`), definitions)
	at.Definitions = len(encoded) - 1
	return slices.Concat(encoded, []byte(","), tail[1:]), at, nil
}
