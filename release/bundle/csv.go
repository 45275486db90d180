package main

import (
	_ "embed"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"quorate.dev/release/manifest"
)

//go:embed csv.yaml
var base []byte

//go:embed description.md
var description string

//go:embed icon.svg
var icon []byte

// operator is the name of the operator's Deployment, ServiceAccount and ClusterRole.
const operator = "quorate-operator"

// grantedByOLM are the ClusterRoles whose rules are in the ClusterServiceVersion. OLM creates roles from these rules,
// so the bundle does not contain the ClusterRoles as files.
var grantedByOLM = map[string]bool{operator: true, operator + "-metrics": true}

func (r *release) clusterServiceVersion(objects, examples []manifest.Object) (manifest.Object, error) {
	csv := &unstructured.Unstructured{}
	if err := yaml.Unmarshal(base, &csv.Object); err != nil {
		return nil, fmt.Errorf("csv.yaml: %w", err)
	}
	csv.SetName(r.name())
	almExamples, err := inOneList(examples)
	if err != nil {
		return nil, err
	}
	annotations := csv.GetAnnotations()
	annotations["alm-examples"] = almExamples
	annotations["containerImage"] = r.image
	annotations["olm.skipRange"] = ">=0.0.0 <" + r.version
	csv.SetAnnotations(annotations)
	install, err := r.install(objects)
	if err != nil {
		return nil, err
	}
	owned, err := ownedKinds(manifest.OfKind(objects, "CustomResourceDefinition"))
	if err != nil {
		return nil, err
	}
	spec := csv.Object["spec"].(map[string]any)
	spec["version"] = r.version
	spec["description"] = description
	spec["icon"] = []any{
		map[string]any{"base64data": base64.StdEncoding.EncodeToString(icon), "mediatype": "image/svg+xml"},
	}
	spec["relatedImages"] = []any{map[string]any{"name": packageName, "image": r.image}}
	spec["install"] = map[string]any{"strategy": "deployment", "spec": install}
	spec["customresourcedefinitions"] = map[string]any{"owned": owned}
	if r.replaces != "" {
		spec["replaces"] = r.replaces
	}
	return csv, nil
}

func inOneList(examples []manifest.Object) (string, error) {
	var list []any
	for _, example := range examples {
		list = append(list, example.Object)
	}
	text, err := json.MarshalIndent(list, "", "  ")
	return string(text), err
}

// install returns the install strategy of the ClusterServiceVersion: the Deployment and the permissions of the
// operator. OLM creates the namespaced permissions as a Role in each namespace that the OperatorGroup selects, or as a
// ClusterRole if it selects all namespaces.
func (r *release) install(objects []manifest.Object) (map[string]any, error) {
	namespaced, err := rules(objects,
		[2]string{"Role", operator + "-leader-election"}, [2]string{"Role", operator + "-metrics"},
		[2]string{"ClusterRole", operator})
	if err != nil {
		return nil, err
	}
	clusterWide, err := rules(objects, [2]string{"ClusterRole", operator + "-metrics"})
	if err != nil {
		return nil, err
	}
	deployment, err := r.deployment(objects)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"permissions":        []any{map[string]any{"serviceAccountName": operator, "rules": namespaced}},
		"clusterPermissions": []any{map[string]any{"serviceAccountName": operator, "rules": clusterWide}},
		"deployments":        []any{deployment},
	}, nil
}

// rules returns the rules of several roles, each given as kind and name.
func rules(objects []manifest.Object, roles ...[2]string) ([]any, error) {
	var all []any
	for _, r := range roles {
		role, err := manifest.Find(objects, r[0], r[1])
		if err != nil {
			return nil, err
		}
		all = append(all, role.Object["rules"].([]any)...)
	}
	return all, nil
}

// targetNamespaces is the annotation by which OLM passes the namespaces of the OperatorGroup to the pods of an
// operator. Its value is empty for all namespaces.
const targetNamespaces = "olm.targetNamespaces"

// deployment returns the operator's Deployment for the install strategy, with --namespaces set to the namespaces of the
// OperatorGroup.
func (r *release) deployment(objects []manifest.Object) (map[string]any, error) {
	found, err := manifest.Find(objects, "Deployment", operator)
	if err != nil {
		return nil, err
	}
	found = found.DeepCopy()
	spec := found.Object["spec"].(map[string]any)
	containers, _, err := unstructured.NestedSlice(spec, "template", "spec", "containers")
	if err != nil {
		return nil, err
	}
	container := containers[0].(map[string]any)
	container["image"] = r.image
	container["args"] = append(container["args"].([]any), "--namespaces=$(WATCH_NAMESPACE)")
	environment := container["env"].([]any)
	for _, variable := range environment {
		if v := variable.(map[string]any); v["name"] == "QUORATE_IMAGE" {
			v["value"] = r.image
		}
	}
	container["env"] = append(environment, map[string]any{
		"name": "WATCH_NAMESPACE",
		"valueFrom": map[string]any{
			"fieldRef": map[string]any{"fieldPath": "metadata.annotations['" + targetNamespaces + "']"},
		},
	})
	if err := unstructured.SetNestedSlice(spec, containers, "template", "spec", "containers"); err != nil {
		return nil, err
	}
	return map[string]any{
		"name": operator, "label": found.Object["metadata"].(map[string]any)["labels"], "spec": spec,
	}, nil
}
