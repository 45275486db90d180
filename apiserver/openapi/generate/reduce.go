package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"quorate.dev/apiserver/openapi/reduction"
)

// readV3 reads the version 3 documents by path, without logs, which are not served.
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
	documents := map[string]object{}
	for path, file := range all {
		if path == "logs" {
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

// stable reports whether a resource is served by default: neither alpha nor beta.
func stable(resource string) bool { return !unstable.MatchString(resource) }

// ofExtensions reports whether an extension server serves a built-in resource.
func ofExtensions(resource string) bool { return strings.HasPrefix(resource, "apiextensions.k8s.io/") }

func setVersion(document object, minor string) {
	if info, ok := document["info"].(object); ok {
		info["version"] = minor
	}
}

// cbor has the media types of CBOR, a feature that is off by default.
var cbor = []string{"application/cbor", "application/cbor-seq", "application/apply-patch+cbor"}

// dropCBOR removes the media types of CBOR from keys and lists.
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

// readV2 reads the version 2 document, without logs, which are not served.
func readV2(file, minor string) (object, error) {
	swagger, err := readJSON(file)
	if err != nil {
		return nil, err
	}
	setVersion(swagger, minor)
	paths, _, err := pathsAndDefinitions(swagger)
	if err != nil {
		return nil, err
	}
	delete(paths, "/logs/")
	delete(paths, "/logs/{logpath}")
	dropCBOR(paths)
	reduction.KeepReached(paths, at(swagger, "parameters"), "#/parameters/")
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
