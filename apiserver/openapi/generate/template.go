package main

import (
	"fmt"
	"slices"
)

// template has the parts of built-in documents that the documents of custom resources share.
type template struct {
	V2 dialect `json:"v2"`
	V3 dialect `json:"v3"`
}

// dialect has, for OpenAPI version 2 or 3, the parameters of operations by action and the parameters of paths, and
// the schemas that they refer to.
type dialect struct {
	Parameters map[string]any `json:"parameters"`
	Schemas    object         `json:"schemas,omitempty"`
}

// sample is the path of a kind that has all operations of custom resources.
const sample = "/apis/apps/v1/deployments"

func makeTemplate(swagger object, documents map[string]object) (*template, error) {
	v3 := documents["apis/apps/v1"]
	paths2, _, err := pathsAndDefinitions(swagger)
	if err != nil {
		return nil, err
	}
	paths3, ok := v3["paths"].(object)
	if !ok {
		return nil, fmt.Errorf("paths: %w", errNotObject)
	}
	result := &template{}
	if result.V2.Parameters, err = parameters(paths2); err != nil {
		return nil, fmt.Errorf("version 2: %w", err)
	}
	if result.V3.Parameters, err = parameters(paths3); err != nil {
		return nil, fmt.Errorf("version 3: %w", err)
	}
	result.V3.Schemas, err = sharedSchemas(v3)
	return result, err
}

// parameters returns the parameters of operations by action, and the parameters of paths.
func parameters(paths object) (map[string]any, error) {
	const namespaced = "/apis/apps/v1/namespaces/{namespace}/deployments"
	collection, one := at(paths, namespaced), at(paths, namespaced+"/{name}")
	result := map[string]any{
		"everywhere": at(paths, sample)["parameters"],
		"collection": collection["parameters"],
		"list":       at(collection, "get")["parameters"],
		"post":       at(collection, "post")["parameters"],
		"put":        at(one, "put")["parameters"],
		"patch":      at(one, "patch")["parameters"],
		"delete":     at(one, "delete")["parameters"],
	}
	for name, value := range result {
		if _, ok := value.([]any); !ok {
			return nil, fmt.Errorf("no parameters of %s", name)
		}
	}
	return result, nil
}

func at(value object, name string) object {
	child, _ := value[name].(object)
	return child
}

// sharedSchemas returns the schemas of common bodies, metadata and Scale.
func sharedSchemas(document object) (object, error) {
	const meta = "io.k8s.apimachinery.pkg.apis.meta.v1."
	const autoscaling = "io.k8s.api.autoscaling.v1."
	all := at(at(document, "components"), "schemas")
	names := []string{autoscaling + "Scale", autoscaling + "ScaleSpec", autoscaling + "ScaleStatus"}
	for _, name := range []string{
		"DeleteOptions", "FieldsV1", "ListMeta", "ManagedFieldsEntry", "ObjectMeta", "OwnerReference", "Patch",
		"Preconditions", "ShardInfo", "Status", "StatusCause", "StatusDetails", "Time",
	} {
		names = append(names, meta+name)
	}
	shared := object{}
	for _, name := range slices.Sorted(slices.Values(names)) {
		schema, ok := all[name]
		if !ok {
			return nil, fmt.Errorf("no schema of %s", name)
		}
		shared[name] = schema
	}
	return shared, nil
}
