package crd_test

import (
	"math"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// TestStatusUpdate validates writes of the status subresource as kube-apiserver does: the schema of the status, the
// fields of the scale, and the rules and list types of the whole object, but not the schema of other fields.
func TestStatusUpdate(t *testing.T) {
	t.Parallel()
	definition := sample(t)
	limit := int64(3)
	definition.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["status"].Properties["message"] =
		apiextensionsv1.JSONSchemaProps{Type: "string", MaxLength: &limit}
	update := define(t, definition).Version("v1").Endpoints["status"].Update
	status := func(status map[string]any) func(*unstructured.Unstructured) {
		return func(object *unstructured.Unstructured) { object.Object["status"] = status }
	}
	spec := func(name string, value any) func(*unstructured.Unstructured) {
		return func(object *unstructured.Unstructured) { object.Object["spec"].(map[string]any)[name] = value }
	}
	none := func(*unstructured.Unstructured) {}
	for name, test := range map[string]struct {
		old, updated func(*unstructured.Unstructured) // changes of a valid object without a status
		want         string                           // part of the error; empty: the update is valid
	}{
		"valid":  {none, status(map[string]any{"replicas": int64(3), "selector": "a=b", "message": "ok"}), ""},
		"absent": {status(map[string]any{"replicas": int64(3)}), none, ""},
		"wrong type": {none, status(map[string]any{"message": int64(1)}),
			"status.message: Invalid value: \"integer\": message in body must be of type string"},
		"too long": {none, status(map[string]any{"message": "long"}),
			"status.message: Too long: may not be more than 3 bytes"},
		"unchanged violation of the status": {
			status(map[string]any{"message": "long"}), status(map[string]any{"message": "long", "replicas": int64(1)}), "",
		},
		"changed violation of the status": {
			status(map[string]any{"message": "long"}), status(map[string]any{"message": "longer"}), "status.message: Too long",
		},
		"violation of the spec": {spec("color", "purple"), spec("color", "purple"), ""},
		"rule of the whole object": {spec("replicas", int64(11)), func(object *unstructured.Unstructured) {
			spec("replicas", int64(11))(object)
			status(map[string]any{"replicas": int64(1)})(object)
		}, "too many"},
		"unchanged violation of a list type": {
			spec("tags", []any{"x", "x"}), spec("tags", []any{"x", "x"}), "",
		},
		"violation of a list type": {none, spec("tags", []any{"x", "x"}), `spec.tags[1]: Duplicate value: "x"`},
		"negative replicas": {none, status(map[string]any{"replicas": int64(-1)}),
			".status.replicas: Invalid value: -1: should be a non-negative integer"},
		"replicas that a Scale cannot have": {none, status(map[string]any{"replicas": int64(math.MaxInt32) + 1}),
			".status.replicas: Invalid value: 2147483648: should be less than or equal to 2147483647"},
		"replicas of another type": {none, status(map[string]any{"replicas": "many"}),
			".status.replicas: Invalid value: 0: .status.replicas accessor error: many is of the type string, expected int64"},
		"selector of another type": {none, status(map[string]any{"selector": int64(1)}),
			`.status.selector: Invalid value: "": .status.selector accessor error: 1 is of the type int64, expected string`},
		"another kind": {none, func(object *unstructured.Unstructured) { object.SetKind("Gadget") },
			`kind: Invalid value: "Gadget": must be Widget`},
		"another version": {none, func(object *unstructured.Unstructured) { object.SetAPIVersion("example.com/v2") },
			`apiVersion: Invalid value: "example.com/v2": must be example.com/v1`},
		"another name": {none, func(object *unstructured.Unstructured) { object.SetName("other") },
			`metadata.name: Invalid value: "other": field is immutable`},
	} {
		t.Run(name, func(t *testing.T) {
			object := func(change func(*unstructured.Unstructured)) *unstructured.Unstructured {
				w := widget(map[string]any{"color": "green", "replicas": int64(2)})
				change(w)
				return w
			}
			got := messages(update.ValidateUpdate(t.Context(), object(test.updated), object(test.old)))
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}
