package compatibility

import (
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// addedField is a field that the present minor version writes in responses and the former ones do not know.
type addedField struct {
	path []string
	// always is set if the field is written also with --emulated-version: its type has no omitzero, so that every encoder
	// of this release writes it. Other fields have defaults that depend on the release.
	always bool
	value  any // value of the field in upstream's objects
}

// addedFields are the added fields of resources. kube-apiserver 1.37 writes the same ones.
var addedFields = map[string]addedField{
	"csinodes":               {path: []string{"status"}, always: true, value: map[string]any{}},
	"podcertificaterequests": {path: []string{"spec", "stubPKCS10Request"}, always: true},
	"csidrivers":             {path: []string{"spec", "preventPodSchedulingIfMissing"}, value: false},
	"statefulsets":           {path: []string{"spec", "updateStrategy", "rollingUpdate", "maxUnavailable"}, value: 1.0},
}

// withoutAdded removes the added field of a resource from an object, or from the items of a list, and returns the
// object.
func (s *skew) withoutAdded(name schema.GroupVersionResource, o object) object {
	added, ok := addedFields[name.Resource]
	if !ok || s.emulates && !added.always {
		return o
	}
	added.removeFrom(o)
	items, _ := o["items"].([]any)
	for _, item := range items {
		added.removeFrom(item.(map[string]any))
	}
	return o
}

// removeFrom removes the field if it has its value.
func (f addedField) removeFrom(o object) {
	got, found, err := unstructured.NestedFieldNoCopy(o, f.path...)
	if fields, isMap := got.(map[string]any); err != nil || !found || !isMap && got != f.value || len(fields) > 0 {
		return
	}
	unstructured.RemoveNestedField(o, f.path...)
}

// TestAddedFieldsAreRemoved checks that only an added field with its value is removed.
func TestAddedFieldsAreRemoved(t *testing.T) {
	node := schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "csinodes"}
	driver := schema.GroupVersionResource{Group: "storage.k8s.io", Version: "v1", Resource: "csidrivers"}
	spec := func(value bool) object {
		return object{"spec": map[string]any{"preventPodSchedulingIfMissing": value}}
	}
	for _, test := range []struct {
		emulates  bool
		name      schema.GroupVersionResource
		got, want object
	}{
		{true, node, object{"status": map[string]any{}, "spec": "x"}, object{"spec": "x"}},
		{false, node, object{"status": map[string]any{"a": "b"}}, object{"status": map[string]any{"a": "b"}}},
		{false, driver, spec(false), object{"spec": map[string]any{}}},
		{false, driver, spec(true), spec(true)},
		{true, driver, spec(false), spec(false)},
		{
			false, node, object{"items": []any{map[string]any{"status": map[string]any{}}}},
			object{"items": []any{map[string]any{}}},
		},
	} {
		mustEqual(t, test.name.Resource, test.want, (&skew{emulates: test.emulates}).withoutAdded(test.name, test.got))
	}
}
