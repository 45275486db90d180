package main

import (
	"fmt"
	"os"
	"path/filepath"
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

// dropCBOR removes media types of a feature that is off by default.
func dropCBOR(value any) {
	switch v := value.(type) {
	case object:
		delete(v, "application/cbor")
		delete(v, "application/cbor-seq")
		for _, child := range v {
			dropCBOR(child)
		}
	case []any:
		for _, child := range v {
			dropCBOR(child)
		}
	}
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
	reached := map[string]bool{}
	reach(paths, definitions, reached)
	reach(swagger["parameters"], definitions, reached)
	for name := range definitions {
		if !reached[name] {
			delete(definitions, name)
		}
	}
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

// reach marks the definitions that a value refers to, directly or through others.
func reach(value any, definitions object, reached map[string]bool) {
	switch v := value.(type) {
	case object:
		if reference, ok := v["$ref"].(string); ok {
			name, ok := strings.CutPrefix(reference, "#/definitions/")
			if ok && !reached[name] {
				reached[name] = true
				reach(definitions[name], definitions, reached)
			}
		}
		for _, child := range v {
			reach(child, definitions, reached)
		}
	case []any:
		for _, child := range v {
			reach(child, definitions, reached)
		}
	}
}
