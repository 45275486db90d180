package patch

import (
	"encoding/json"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// customDefinition has lists that are merged in different ways.
const customDefinition = `{"metadata":{"name":"widgets.example.com","uid":"1","generation":1},
	"spec":{"group":"example.com","scope":"Namespaced",
		"names":{"plural":"widgets","singular":"widget","kind":"Widget","listKind":"WidgetList"},
		"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{
			"spec":{"type":"object","properties":{
				"size":{"type":"integer","default":3},
				"free":{"type":"object","nullable":true,"x-kubernetes-preserve-unknown-fields":true},
				"set":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},
				"keyed":{"type":"array","x-kubernetes-list-type":"map","x-kubernetes-list-map-keys":["name"],
					"items":{"type":"object","required":["name"],"properties":{
						"name":{"type":"string"},"value":{"type":"string"}}}}}}}}}}]}}`

// currentCustom is the object that is patched.
const currentCustom = `{"apiVersion":"example.com/v1","kind":"Widget",
	"metadata":{"name":"a","namespace":"default","uid":"1"},
	"spec":{"size":3,"free":{"a":"b"},"set":["x","y"],"keyed":[{"name":"a","value":"1"},{"name":"b"}]}}`

// newCustom returns the target of a custom resource.
func newCustom(t testing.TB) resource.Target {
	t.Helper()
	builder, err := crd.NewBuilder(&lazy.Set{}, nil, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := json.Unmarshal([]byte(customDefinition), definition); err != nil {
		t.Fatal(err)
	}
	definition.Status = crd.Conditions(definition, crd.Claim(), true)
	made, err := builder.Definition(definition)
	if err != nil {
		t.Fatal(err)
	}
	return targetOf(resource.Match{Definition: made, Version: made.Version("v1")})
}

// FuzzCustomPatch: a patch of a custom resource returns an API status error or an object that can be stored.
func FuzzCustomPatch(f *testing.F) {
	types := []types.PatchType{types.JSONPatchType, types.MergePatchType, types.ApplyYAMLPatchType}
	for how, patchType := range types {
		for i, text := range examples[patchType] {
			f.Add(uint8(how), uint8(i), []byte(text))
		}
	}
	f.Add(uint8(1), uint8(1), []byte(`{"spec":{"keyed":[{"name":"a","value":1}],"free":{"x":[1,1.5,null]}}}`))
	f.Add(uint8(2), uint8(1), []byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"},
		"spec":{"set":["x"],"keyed":[{"name":"a"}],"free":null}}`))
	f.Add(uint8(1), uint8(1), []byte(`{"apiVersion":""}`))
	target := newCustom(f)
	current := &unstructured.Unstructured{}
	if err := current.UnmarshalJSON([]byte(currentCustom)); err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, how, validation uint8, data []byte) {
		patch := change.Patch{
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
		// Validation refuses another version: it is not converted.
		if object.GetObjectKind().GroupVersionKind().GroupVersion().String() != "example.com/v1" {
			return
		}
		stored, err := target.Version.Codec.Store(t.Context(), object)
		if err != nil {
			t.Fatalf("cannot be stored: %v", err)
		}
		if _, err := target.Version.Codec.Load(t.Context(), stored); err != nil {
			t.Errorf("cannot be loaded: %v: %s", err, stored)
		}
	})
}
