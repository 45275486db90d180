package crd

import (
	"fmt"
	"strings"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/jsonpath"
)

// selectable evaluates the selectable fields of all versions. A field is named by its path, so a name has the same
// meaning in all versions.
type selectable struct {
	namespaced bool
	paths      []string
}

func newSelectable(crd *apiextensionsv1.CustomResourceDefinition) *selectable {
	s := &selectable{namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped}
	seen := map[string]bool{}
	for _, v := range crd.Spec.Versions {
		for _, f := range v.SelectableFields {
			if !seen[f.JSONPath] {
				seen[f.JSONPath] = true
				s.paths = append(s.paths, f.JSONPath)
			}
		}
	}
	return s
}

func (s *selectable) fields(internal runtime.Object) (fields.Set, error) {
	object, ok := internal.(*unstructured.Unstructured)
	if !ok {
		return nil, fmt.Errorf("%T is not a custom resource", internal)
	}
	set := fields.Set{"metadata.name": object.GetName()}
	if s.namespaced {
		set["metadata.namespace"] = object.GetNamespace()
	}
	for _, path := range s.paths {
		value, err := lookup(object.Object, path)
		if err != nil {
			return nil, err
		}
		set[strings.TrimPrefix(path, ".")] = value
	}
	return set, nil
}

// lookup evaluates a JSON path; a missing field is the empty string. jsonpath.JSONPath is stateful, so each evaluation
// creates one.
func lookup(content map[string]any, path string) (string, error) {
	expression := jsonpath.New("selectableField").AllowMissingKeys(true)
	if err := expression.Parse("{" + path + "}"); err != nil {
		return "", fmt.Errorf("selectable field %s: %w", path, err)
	}
	results, err := expression.FindResults(content)
	if err != nil {
		return "", fmt.Errorf("selectable field %s: %w", path, err)
	}
	if len(results) == 0 || len(results[0]) == 0 {
		return "", nil
	}
	if len(results) > 1 || len(results[0]) > 1 {
		return "", fmt.Errorf("selectable field %s has more than one value", path)
	}
	if value := results[0][0].Interface(); value != nil {
		return fmt.Sprint(value), nil
	}
	return "", nil
}

// fieldLabel returns the function that accepts the field labels of one version.
func fieldLabel(namespaced bool, selectable []apiextensionsv1.SelectableField) func(label, value string) (string, string, error) {
	allowed := map[string]bool{"metadata.name": true, "metadata.namespace": namespaced}
	for _, f := range selectable {
		allowed[strings.TrimPrefix(f.JSONPath, ".")] = true
	}
	return func(label, value string) (string, string, error) {
		if !allowed[label] {
			return "", "", fmt.Errorf("field label not supported: %s", label)
		}
		return label, value, nil
	}
}
