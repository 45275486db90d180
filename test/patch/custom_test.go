package patch

import (
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// newCustom is a custom resource with lists that are merged in different ways.
func newCustom(t testing.TB) registry.Target {
	t.Helper()
	builder, err := crd.NewBuilder()
	if err != nil {
		t.Fatal(err)
	}
	preserve, mapType, setType := true, "map", "set"
	properties := map[string]apiextensionsv1.JSONSchemaProps{
		"size": {Type: "integer", Default: &apiextensionsv1.JSON{Raw: []byte("3")}},
		"free": {Type: "object", XPreserveUnknownFields: &preserve, Nullable: true},
		"keyed": {Type: "array", XListType: &mapType, XListMapKeys: []string{"name"}, Items: &apiextensionsv1.JSONSchemaPropsOrArray{
			Schema: &apiextensionsv1.JSONSchemaProps{Type: "object", Required: []string{"name"}, Properties: map[string]apiextensionsv1.JSONSchemaProps{
				"name": {Type: "string"}, "value": {Type: "string"},
			}},
		}},
		"set": {Type: "array", XListType: &setType, Items: &apiextensionsv1.JSONSchemaPropsOrArray{Schema: &apiextensionsv1.JSONSchemaProps{Type: "string"}}},
	}
	definition := &apiextensionsv1.CustomResourceDefinition{
		ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com", UID: "1", Generation: 1},
		Spec: apiextensionsv1.CustomResourceDefinitionSpec{
			Group: "example.com", Scope: apiextensionsv1.NamespaceScoped,
			Names: apiextensionsv1.CustomResourceDefinitionNames{Plural: "widgets", Singular: "widget", Kind: "Widget", ListKind: "WidgetList"},
			Versions: []apiextensionsv1.CustomResourceDefinitionVersion{{
				Name: "v1", Served: true, Storage: true,
				Schema: &apiextensionsv1.CustomResourceValidation{OpenAPIV3Schema: &apiextensionsv1.JSONSchemaProps{
					Type: "object", Properties: map[string]apiextensionsv1.JSONSchemaProps{"spec": {Type: "object", Properties: properties}},
				}},
			}},
		},
	}
	definition.Status = crd.Conditions(definition, crd.Claim(), true)
	made, err := builder.Definition(definition)
	if err != nil {
		t.Fatal(err)
	}
	version := made.Version("v1")
	return registry.Target{
		Match: resource.Match{Definition: made, Version: version}, Endpoint: version.Endpoints[""], Namespace: namespace, Name: name,
	}
}

// FuzzCustomPatch: a patch of a custom resource is refused in the words of an API, or makes what can be stored.
func FuzzCustomPatch(f *testing.F) {
	types := []types.PatchType{types.JSONPatchType, types.MergePatchType, types.ApplyYAMLPatchType}
	for how, patchType := range types {
		for i, text := range examples[patchType] {
			f.Add(uint8(how), uint8(i), []byte(text))
		}
	}
	f.Add(uint8(1), uint8(1), []byte(`{"spec":{"keyed":[{"name":"a","value":1}],"free":{"x":[1,1.5,null]}}}`))
	f.Add(uint8(2), uint8(1), []byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},"spec":{"set":["x"],"keyed":[{"name":"a"}],"free":null}}`))
	target := newCustom(f)
	current := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": name, "namespace": namespace, "uid": "1"},
		"spec": map[string]any{
			"size": int64(3), "free": map[string]any{"a": "b"}, "set": []any{"x", "y"},
			"keyed": []any{map[string]any{"name": "a", "value": "1"}, map[string]any{"name": "b"}},
		},
	}}
	f.Fuzz(func(t *testing.T, how, validation uint8, data []byte) {
		patch := registry.Patch{
			Type: types[int(how)%len(types)], Data: data, Manager: manager, Force: validation&0x40 != 0,
			Validation: []resource.FieldValidation{resource.Ignore, resource.Warn, resource.Strict}[int(validation)%3],
		}
		object, err := patch.Apply(t.Context(), target, current.DeepCopy())
		if err != nil {
			if status := request.StatusOf(err); status.Code < 400 || status.Message == "" {
				t.Errorf("refused with %+v", status)
			}
			return
		}
		stored, err := target.Version.Model.Store(object)
		if err != nil {
			t.Fatalf("cannot be stored: %v", err)
		}
		if _, err := target.Version.Model.Load(stored); err != nil {
			t.Errorf("cannot be loaded: %v: %s", err, stored)
		}
	})
}
