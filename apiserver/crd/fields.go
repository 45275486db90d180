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

// selectable evaluates the selectable fields of all versions. The name of a field is its path, so that a name has the
// same meaning in all versions.
type selectable struct {
	namespaced bool
	paths      []string
}

// newSelectable returns the selectable fields of all versions, each path once, in the order of the definition.
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

// fields implements resource.Definition.Fields. The object is evaluated as it is: a path of another version than the
// object's usually finds nothing, and the field is then empty. A field whose path cannot be evaluated is an error of
// the object, which a list with a field selector returns.
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

// lookup evaluates a JSON path; a missing field or null is the empty string. It mirrors GetAttrs of
// customResourceStrategy. A jsonpath.JSONPath has state of its evaluation, so that concurrent requests cannot share
// one, and each call parses the path, which is short and has no wildcards.
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

// fieldLabel returns the function that accepts the field labels of one version: names, and the selectable fields of
// that version only, although fields returns the fields of all versions.
func fieldLabel(
	namespaced bool, selectable []apiextensionsv1.SelectableField,
) func(label, value string) (string, string, error) {
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
