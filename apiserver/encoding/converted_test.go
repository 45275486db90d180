package encoding

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/resource"
)

// TestDerivedItems derives items of a custom resource from its converted objects. They equal the items that are encoded
// from the stored objects, so that the watch cache needs one conversion for all formats of a version.
func TestDerivedItems(t *testing.T) {
	t.Parallel()
	m := custom(t)
	stored := []byte(`{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"a","labels":{"x":"y"}},` +
		`"spec":{"color":"red"}}`)
	converted, err := Converted(m).Encode(t.Context(), stored, 7)
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		format    Format
		converted bool
		want      string
	}{
		"whole":             {Format{Resource: m, Media: codec.JSON}, true, `"spec":{"color":"red"}`},
		"undecorated":       {Format{Resource: m, Media: codec.JSON, Shape: Undecorated}, true, `"spec":{"color":"red"}`},
		"metadata":          {Format{Resource: m, Media: codec.JSON, Shape: Metadata}, false, `"labels":{"x":"y"}`},
		"protobuf metadata": {Format{Resource: m, Media: codec.Protobuf, Shape: Metadata}, false, "\x01x\x12\x01y"},
	} {
		if test.format.IsConverted() != test.converted {
			t.Errorf("%s: the items equal the converted items: %t", name, !test.converted)
		}
		want, err := test.format.Encode(t.Context(), stored, 12)
		if err != nil {
			t.Fatal(err)
		}
		got, err := test.format.Derive(converted, 12)
		if err != nil || string(got) != string(want) {
			t.Errorf("%s: got %s, %v, want %s", name, got, err, want)
		}
		if !strings.Contains(string(got), test.want) {
			t.Errorf("%s: %s is not in %q", name, test.want, got)
		}
	}
	if _, err := Converted(m).Derive([]byte("nonsense"), 12); err == nil ||
		!strings.Contains(err.Error(), "decode a converted object") {
		t.Errorf("got the error %v for an item that is not JSON", err)
	}
}

// TestEncodeAll encodes many objects. If one fails, the items of the objects before it are returned with the error.
func TestEncodeAll(t *testing.T) {
	t.Parallel()
	for kind, m := range map[string]resource.Match{"built-in": pods(), "custom": custom(t)} {
		format := Format{Resource: m, Media: codec.JSON}
		one := []byte(`{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"a"}}`)
		if kind == "built-in" {
			one = store(t, m)
		}
		items, err := format.EncodeAll(t.Context(), []Source{{one, 5}, {one, 6}})
		if err != nil || len(items) != 2 {
			t.Fatalf("%s: got %d items, %v", kind, len(items), err)
		}
		for i, want := range []string{"5", "6"} {
			var object metav1.PartialObjectMetadata
			if err := json.Unmarshal(items[i], &object); err != nil || object.Name != "a" || object.ResourceVersion != want {
				t.Errorf("%s: item %d is %s, %v, want revision %s", kind, i, items[i], err, want)
			}
		}
		items, err = format.EncodeAll(t.Context(), []Source{{one, 5}, {[]byte("nonsense"), 6}, {one, 7}})
		if err == nil || len(items) != 1 {
			t.Errorf("%s: got %d items, %v, want the first item and an error", kind, len(items), err)
		}
		if format.Remote(one) {
			t.Errorf("%s: a webhook converts the object", kind)
		}
	}
}

// TestUnreadableObjects encodes bytes that are no object.
func TestUnreadableObjects(t *testing.T) {
	t.Parallel()
	for name, format := range formats(pods()) {
		if item, err := format.Encode(t.Context(), []byte("nonsense"), 1); err == nil {
			t.Errorf("%s: got %s", name, item)
		}
	}
	m := pods()
	m.Version.Codec = failing{m.Version.Codec}
	if _, err := (Format{Resource: m}).EncodeAll(t.Context(), nil); !errors.Is(err, errWebhook) {
		t.Errorf("got the error %v of EncodeAll", err)
	}
}

// TestEstimatedSizes compares estimates with the sizes of items. Requests reserve memory according to the estimates.
func TestEstimatedSizes(t *testing.T) {
	t.Parallel()
	m := pods()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	for range 300 {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: "container", Image: "example.com/image"})
	}
	stored, err := m.Version.Codec.Store(t.Context(), pod)
	if err != nil {
		t.Fatal(err)
	}
	for name, format := range formats(m) {
		item, err := format.Encode(t.Context(), stored, 1)
		if err != nil {
			t.Fatal(err)
		}
		estimate := format.EstimateSize(stored)
		if size := int64(len(item)); estimate < size/4 || estimate > max(4*size, maxMetadata) {
			t.Errorf("%s: estimated %d bytes for an item of %d", name, estimate, size)
		}
	}
}

var errWebhook = errors.New("the conversion webhook failed")

// failing is a codec whose conversion webhook fails.
type failing struct{ resource.Codec }

func (failing) LoadAll(context.Context, [][]byte) ([]runtime.Object, error) { return nil, errWebhook }

// custom returns a custom resource with one version.
func custom(t testing.TB) resource.Match {
	t.Helper()
	const text = `
spec:
  group: example.com
  scope: Namespaced
  names: {plural: gadgets, singular: gadget, kind: Gadget, listKind: GadgetList}
  conversion: {strategy: None}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, x-kubernetes-preserve-unknown-fields: true}}
`
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(text), definition); err != nil {
		t.Fatal(err)
	}
	definition.Status = crd.Conditions(definition, crd.Claim(), true)
	converters, err := crd.NewConverters(nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	builder, err := crd.NewBuilder(&lazy.Set{}, converters, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	built, err := builder.Definition(definition)
	if err != nil {
		t.Fatal(err)
	}
	return resource.Match{Definition: built, Version: built.Version("v1")}
}
