package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"quorate.dev/release/manifest"
)

// ownedKinds returns the kinds of the CustomResourceDefinitions with one descriptor for each field of spec and status.
// The texts of descriptors come from the schema.
func ownedKinds(definitions []manifest.Object) ([]any, error) {
	var owned []any
	for _, definition := range definitions {
		kind, err := ownedKind(definition)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", definition.GetName(), err)
		}
		owned = append(owned, kind)
	}
	return owned, nil
}

// resources are the kinds of the objects that the operator creates for an object of each kind. Consoles display them.
var resources = map[string][]any{
	"ApiServerCluster": {
		resource("v1", "Pod"), resource("v1", "PersistentVolumeClaim"), resource("v1", "Service"), resource("v1", "Secret"),
		resource("policy/v1", "PodDisruptionBudget"), resource("networking.k8s.io/v1", "NetworkPolicy"),
	},
	"ApiServerBackup":         {resource("v1", "Pod")},
	"ApiServerBackupSchedule": {resource("quorate.dev/v1alpha1", "ApiServerBackup")},
	"ApiServerKubeconfig":     {resource("v1", "Secret")},
}

func resource(version, kind string) any {
	return map[string]any{"version": version, "kind": kind, "name": ""}
}

func ownedKind(definition manifest.Object) (map[string]any, error) {
	kind, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "kind")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	if len(versions) != 1 || resources[kind] == nil {
		return nil, fmt.Errorf("want one version and a list of resources of %s", kind)
	}
	version := versions[0].(map[string]any)
	schema, _, err := unstructured.NestedMap(version, "schema", "openAPIV3Schema")
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"name": definition.GetName(), "kind": kind, "version": version["name"],
		"displayName":       strings.Join(words(kind), " "),
		"description":       oneLine(schema["description"]),
		"resources":         resources[kind],
		"specDescriptors":   descriptors(schema, "spec", ""),
		"statusDescriptors": descriptors(schema, "status", "text"),
	}, nil
}

// descriptors returns a descriptor for each field of the schema's spec or status, as of says. Fields that have no entry
// in widgets get the widget other, if it is not empty.
func descriptors(schema map[string]any, of, other string) []any {
	fields, _, _ := unstructured.NestedMap(schema, "properties", of, "properties")
	var all []any
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		field := fields[name].(map[string]any)
		descriptor := map[string]any{
			"path": name, "displayName": strings.Join(words(name), " "), "description": oneLine(field["description"]),
		}
		if widget := cmp.Or(widgets[of+"."+name], widgets[fmt.Sprint(field["type"])], other); widget != "" {
			descriptor["x-descriptors"] = []any{"urn:alm:descriptor:" + consoles[widget] + widget}
		}
		all = append(all, descriptor)
	}
	return all
}

// widgets are the widgets in which the OpenShift console displays fields, by path or else by type.
var widgets = map[string]string{
	"spec.replicas": "podCount", "spec.resources": "resourceRequirements", "spec.imagePullPolicy": "imagePullPolicy",
	"spec.suspend": "booleanSwitch", "spec.image": "text", "spec.mode": "text",
	"status.conditions": "conditions", "status.endpoint": "w3Link",
	"integer": "number", "boolean": "booleanSwitch",
}

// consoles are the prefixes of the widgets' names.
var consoles = map[string]string{
	"conditions": "io.kubernetes.", "w3Link": "org.", "podCount": console, "resourceRequirements": console,
	"imagePullPolicy": console, "booleanSwitch": console, "text": console, "number": console,
}

const console = "com.tectonic.ui:"

func oneLine(text any) string { return strings.Join(strings.Fields(fmt.Sprint(text)), " ") }

// words splits an identifier into words: extraSANs into Extra and SANs, APIServices into API and Services.
func words(identifier string) []string {
	runes := []rune(identifier)
	var all []string
	begin := 0
	for i := 1; i < len(runes); i++ {
		afterLower := unicode.IsUpper(runes[i]) && unicode.IsLower(runes[i-1])
		beforeLower := unicode.IsUpper(runes[i-1]) && unicode.IsUpper(runes[i]) && i+2 < len(runes) &&
			unicode.IsLower(runes[i+1])
		if afterLower || beforeLower {
			all = append(all, string(runes[begin:i]))
			begin = i
		}
	}
	all = append(all, string(runes[begin:]))
	all[0] = strings.ToUpper(all[0][:1]) + all[0][1:]
	return all
}
