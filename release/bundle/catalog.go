package main

import (
	"bytes"
	_ "embed"
	"encoding/base64"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"quorate.dev/release/manifest"
)

// catalog returns the file-based catalog of OLM: one package with one channel, whose only entry is this bundle.
func (r *release) catalog(csv manifest.Object, objects []manifest.Object) (manifest.Directory, error) {
	entry := map[string]any{"name": r.name(), "skipRange": csv.GetAnnotations()["olm.skipRange"]}
	if r.replaces != "" {
		entry["replaces"] = r.replaces
	}
	blobs := []any{
		map[string]any{
			"schema": "olm.package", "name": packageName, "defaultChannel": channel, "description": description,
			"icon": map[string]any{"base64data": base64.StdEncoding.EncodeToString(icon), "mediatype": "image/svg+xml"},
		},
		map[string]any{"schema": "olm.channel", "package": packageName, "name": channel, "entries": []any{entry}},
		map[string]any{
			"schema": "olm.bundle", "package": packageName, "name": r.name(), "image": r.bundleImage,
			"properties": r.properties(csv, objects),
			"relatedImages": []any{
				map[string]any{"name": "", "image": r.bundleImage}, map[string]any{"name": packageName, "image": r.image},
			},
		},
	}
	var text bytes.Buffer
	for _, blob := range blobs {
		document, err := yaml.Marshal(blob)
		if err != nil {
			return nil, err
		}
		text.WriteString("---\n")
		text.Write(document)
	}
	return manifest.Directory{packageName + "/catalog.yaml": text.Bytes()}, nil
}

// inMetadata are the fields of the ClusterServiceVersion's spec that a catalog repeats for display.
var inMetadata = []string{
	"displayName", "description", "installModes", "keywords", "links", "maintainers", "maturity",
	"minKubeVersion", "provider",
}

// properties returns the properties of the bundle in a catalog: package, version and kinds, by which OLM resolves
// dependencies, and the metadata that consoles display.
func (r *release) properties(csv manifest.Object, objects []manifest.Object) []any {
	all := []any{property("olm.package", map[string]any{"packageName": packageName, "version": r.version})}
	for _, definition := range manifest.OfKind(objects, "CustomResourceDefinition") {
		group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
		kind, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "kind")
		versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
		for _, version := range versions {
			all = append(all, property("olm.gvk", map[string]any{
				"group": group, "kind": kind, "version": version.(map[string]any)["name"],
			}))
		}
	}
	spec := csv.Object["spec"].(map[string]any)
	metadata := map[string]any{
		"annotations": csv.GetAnnotations(), "labels": csv.GetLabels(), "crdDescriptions": spec["customresourcedefinitions"],
	}
	for _, field := range inMetadata {
		metadata[field] = spec[field]
	}
	return append(all, property("olm.csv.metadata", metadata))
}

func property(kind string, value any) any { return map[string]any{"type": kind, "value": value} }

//go:embed scorecard.yaml
var scorecardFile []byte

// scorecard returns the configuration of operator-sdk scorecard, which tests the bundle.
func scorecard() any {
	var configuration map[string]any
	if err := yaml.Unmarshal(scorecardFile, &configuration); err != nil {
		panic(err) // embedded
	}
	return configuration
}
