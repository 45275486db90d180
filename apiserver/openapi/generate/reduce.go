package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// readV3 reads the version 3 documents of what is served by default, by path.
func readV3(directory, minor string) (map[string]object, error) {
	entries, err := os.ReadDir(directory)
	if err != nil {
		return nil, fmt.Errorf("list documents: %w", err)
	}
	all := map[string]string{}
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), "_openapi.json")
		if ok {
			all[strings.ReplaceAll(name, "__", "/")] = filepath.Join(directory, entry.Name())
		}
	}
	groups := stableGroups(all)
	documents := map[string]object{}
	for path, file := range all {
		if !served("/"+path, groups) {
			continue
		}
		document, err := readJSON(file)
		if err != nil {
			return nil, err
		}
		setVersion(document, minor)
		dropCBOR(document)
		documents[path] = document
	}
	return documents, nil
}

// stableGroups are those that have a version which is neither alpha nor beta.
func stableGroups[T any](paths map[string]T) map[string]bool {
	groups := map[string]bool{}
	for path := range paths {
		group := groupOf.FindStringSubmatch(path)
		if group != nil && strings.Count(strings.Trim(path, "/"), "/") > 1 && !unstable.MatchString(path) {
			groups[group[1]] = true
		}
	}
	return groups
}

// served tells what is there without any flag: no alpha or beta version, no group that has only such, no logs.
func served(path string, groups map[string]bool) bool {
	if unstable.MatchString(path) || path == "/logs" || strings.HasPrefix(path, "/logs/") {
		return false
	}
	group := groupOf.FindStringSubmatch(path)
	return group == nil || groups[group[1]]
}

func setVersion(document object, minor string) {
	if info, ok := document["info"].(object); ok {
		info["version"] = minor
	}
}

// cbor are the media types of a feature that is off by default.
var cbor = []string{"application/cbor", "application/cbor-seq", "application/apply-patch+cbor"}

// dropCBOR removes those media types, wherever they are keys or items.
func dropCBOR(value any) any {
	switch v := value.(type) {
	case object:
		for key, child := range v {
			v[key] = dropCBOR(child)
		}
		for _, mediaType := range cbor {
			delete(v, mediaType)
		}
	case []any:
		kept := []any{}
		for _, child := range v {
			if name, ok := child.(string); !ok || !slices.Contains(cbor, name) {
				kept = append(kept, dropCBOR(child))
			}
		}
		return kept
	}
	return value
}

// readV2 reads the version 2 document and keeps of it what is served by default.
func readV2(file, minor string) (object, error) {
	swagger, err := readJSON(file)
	if err != nil {
		return nil, err
	}
	setVersion(swagger, minor)
	paths, definitions, err := pathsAndDefinitions(swagger)
	if err != nil {
		return nil, err
	}
	groups := stableGroups(paths)
	for path := range paths {
		if !served(path, groups) {
			delete(paths, path)
		}
	}
	dropCBOR(paths)
	keepReached(paths, at(swagger, "parameters"), "#/parameters/")
	keepReached(object{"paths": paths, "parameters": swagger["parameters"]}, definitions, "#/definitions/")
	return swagger, nil
}

func pathsAndDefinitions(swagger object) (paths, definitions object, err error) {
	paths, ok := swagger["paths"].(object)
	if !ok {
		return nil, nil, fmt.Errorf("paths: %w", errNotObject)
	}
	definitions, ok = swagger["definitions"].(object)
	if !ok {
		return nil, nil, fmt.Errorf("definitions: %w", errNotObject)
	}
	return paths, definitions, nil
}

// keepReached removes from values those that nothing refers to, directly or through others.
func keepReached(from any, values object, prefix string) {
	reached := map[string]bool{}
	reach(from, values, prefix, reached)
	for name := range values {
		if !reached[name] {
			delete(values, name)
		}
	}
}

// reach marks the values that a value refers to.
func reach(value any, values object, prefix string, reached map[string]bool) {
	switch v := value.(type) {
	case object:
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
