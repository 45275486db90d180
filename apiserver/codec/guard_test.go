package codec

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protowire"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/install"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

var (
	definitionKind = apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition")
	configMapKind  = corev1.SchemeGroupVersion.WithKind("ConfigMap")
)

// part returns a length-delimited field that contains parts.
func part(number protowire.Number, parts ...[]byte) []byte {
	return protowire.AppendBytes(protowire.AppendTag(nil, number, protowire.BytesType), slices.Concat(parts...))
}

func envelope(kind schema.GroupVersionKind, message []byte) []byte {
	apiVersion, name := kind.ToAPIVersionAndKind()
	return slices.Concat(protobufMagic, part(1, part(1, []byte(apiVersion)), part(2, []byte(name))), part(2, message))
}

// These functions nest a schema in another one, each in a different field.
var nestings = map[string]func([]byte) []byte{
	"not":                  func(inner []byte) []byte { return part(28, inner) },
	"allOf":                func(inner []byte) []byte { return part(25, inner) },
	"items":                func(inner []byte) []byte { return part(24, part(1, inner)) },
	"additionalProperties": func(inner []byte) []byte { return part(30, part(2, inner)) },
	"properties":           func(inner []byte) []byte { return part(29, part(1, []byte("a")), part(2, inner)) },
	"dependencies":         func(inner []byte) []byte { return part(32, part(1, []byte("a")), part(2, part(1, inner))) },
	// Generated decoders ignore the wire types of an entry's fields and the upper half of a tag.
	"odd wire type": func(inner []byte) []byte {
		return part(29, slices.Concat(protowire.AppendTag(nil, 2, protowire.Fixed64Type), protowire.AppendBytes(nil, inner)))
	},
	"odd tag": func(inner []byte) []byte {
		return protowire.AppendBytes(protowire.AppendVarint(nil, 1<<40|28<<3|2), inner)
	},
	"after a group": func(inner []byte) []byte {
		begin := protowire.AppendTag(nil, 99, protowire.StartGroupType)
		end := protowire.AppendTag(nil, 99, protowire.EndGroupType)
		return part(29, begin, part(1, []byte{0xff}), end, part(2, inner))
	},
}

// definition returns a CustomResourceDefinition with a schema.
func definition(schema []byte) []byte {
	return envelope(definitionKind, part(2, part(7, part(4, part(1, schema)))))
}

func nested(nest func([]byte) []byte, levels int) []byte {
	schema := part(5, []byte("object"))
	for range levels {
		schema = nest(schema)
	}
	return schema
}

func definitionGuard() *Guard {
	scheme := runtime.NewScheme()
	install.Install(scheme)
	return NewGuard(scheme)
}

func TestNestingOfProtobuf(t *testing.T) {
	guard := definitionGuard()
	for name, nest := range nestings {
		t.Run(name, func(t *testing.T) {
			if err := guard.Check(definition(nested(nest, 200)), runtime.ContentTypeProtobuf, definitionKind); err != nil {
				t.Errorf("200 levels: %v", err)
			}
			for _, levels := range []int{maxMessageNesting, 10 * maxMessageNesting} {
				err := guard.Check(definition(nested(nest, levels)), runtime.ContentTypeProtobuf, definitionKind)
				if !errors.Is(err, errMessageNesting) {
					t.Errorf("%d levels: %v", levels, err)
				}
			}
		})
	}
}

// TestNestingBeforeGarbage has bodies with a malformed end, which generated decoders reach only after the nested
// messages.
func TestNestingBeforeGarbage(t *testing.T) {
	body := definition(append(nested(nestings["not"], 2*maxMessageNesting), 0xff, 0xff))
	err := definitionGuard().Check(body, runtime.ContentTypeProtobuf, definitionKind)
	if !errors.Is(err, errMessageNesting) {
		t.Error(err)
	}
}

func TestNestingOfJSON(t *testing.T) {
	body := func(levels int) string {
		const head, tail = `{"metadata":{"annotations":{"a":"{{[\"{\\"}},"spec":{"a":`, `}}`
		return head + strings.Repeat(`{"not":`, levels) + "{}" + strings.Repeat("}", levels) + tail
	}
	for _, test := range []struct {
		mediaType string
		kind      schema.GroupVersionKind
		guard     *Guard
		levels    int
		want      error
	}{
		{runtime.ContentTypeJSON, definitionKind, definitionGuard(), maxJSONNesting - 3, nil},
		{runtime.ContentTypeJSON, definitionKind, definitionGuard(), maxJSONNesting, errJSONNesting},
		{runtime.ContentTypeYAML, definitionKind, definitionGuard(), maxJSONNesting - 3, nil},
		{runtime.ContentTypeYAML, definitionKind, definitionGuard(), maxJSONNesting, errJSONNesting},
		{runtime.ContentTypeJSON, configMapKind, NewGuard(clientscheme.Scheme), 2 * maxJSONNesting, nil},
	} {
		if err := test.guard.Check([]byte(body(test.levels)), test.mediaType, test.kind); !errors.Is(err, test.want) {
			t.Errorf("%s, %s, %d levels: %v", test.kind.Kind, test.mediaType, test.levels, err)
		}
	}
}

// overlapping returns a map field whose entries include the bytes of the entries after them.
func overlapping(number protowire.Number, item protowire.Number, entries int) []byte {
	var all []byte
	for range entries {
		claimed := protowire.AppendVarint(protowire.AppendTag(nil, item, protowire.BytesType), uint64(len(all)))
		all = slices.Concat(part(number, claimed), all)
	}
	return all
}

func TestEntriesOfMapsDoNotOverlap(t *testing.T) {
	core, labels := NewGuard(clientscheme.Scheme), part(1, overlapping(11, 1, 3))
	for name, test := range map[string]struct {
		guard *Guard
		body  []byte
	}{
		"labels":        {core, envelope(configMapKind, labels)},
		"label values":  {core, envelope(configMapKind, part(1, overlapping(11, 2, 3)))},
		"binary data":   {core, envelope(configMapKind, overlapping(3, 2, 3))},
		"properties":    {definitionGuard(), definition(overlapping(29, 2, 3))},
		"no kind":       {core, slices.Concat(protobufMagic, part(2, labels))},
		"another kind":  {core, envelope(corev1.SchemeGroupVersion.WithKind("Pod"), labels)},
		"second object": {core, slices.Concat(envelope(configMapKind, nil), part(2, labels))},
	} {
		kind := configMapKind
		if strings.HasPrefix(name, "prop") {
			kind = definitionKind
		}
		if err := test.guard.Check(test.body, runtime.ContentTypeProtobuf, kind); !errors.Is(err, errMapEntry) {
			t.Errorf("%s: %v", name, err)
		}
	}
	sound := envelope(configMapKind, part(1, part(11, part(1, []byte("k")), part(2, []byte("v")))))
	if err := core.Check(sound, runtime.ContentTypeProtobuf, configMapKind); err != nil {
		t.Errorf("a label: %v", err)
	}
}

// FuzzGuard decodes bodies that pass the guard. The result is not larger than the body, except for empty messages.
func FuzzGuard(f *testing.F) {
	f.Add(nested(nestings["properties"], 3))
	f.Add(nested(nestings["odd wire type"], 3))
	f.Add(nested(nestings["odd tag"], 3))
	f.Add(nested(nestings["after a group"], 3))
	f.Add(overlapping(29, 2, 12))
	f.Add(overlapping(29, 1, 12))
	f.Add(overlapping(32, 2, 12))
	guard := definitionGuard()
	f.Fuzz(func(t *testing.T, schema []byte) {
		body := definition(schema)
		if guard.Check(body, runtime.ContentTypeProtobuf, definitionKind) != nil {
			return
		}
		decoded := &apiextensionsv1.JSONSchemaProps{}
		if decoded.Unmarshal(schema) != nil {
			return
		}
		const most = 200 // memory of an empty schema, in bytes
		if size := decoded.Size(); size > most*(len(schema)+1) {
			t.Errorf("%d bytes became %d", len(schema), size)
		}
		if depth := depthOf(decoded); depth > maxMessageNesting {
			t.Errorf("%d schemas are nested", depth)
		}
	})
}

// depthOf returns the depth of schemas, nested in the fields that the corpus has.
func depthOf(schema *apiextensionsv1.JSONSchemaProps) int {
	deepest := 0
	visit := func(inner *apiextensionsv1.JSONSchemaProps) {
		if inner != nil {
			deepest = max(deepest, depthOf(inner))
		}
	}
	visit(schema.Not)
	for _, inner := range schema.Properties {
		visit(&inner)
	}
	for _, inner := range schema.AllOf {
		visit(&inner)
	}
	if schema.Items != nil {
		visit(schema.Items.Schema)
	}
	return deepest + 1
}

func BenchmarkGuard(b *testing.B) {
	labels := map[string]string{}
	for i := range 20 {
		labels[fmt.Sprint("label-", i)] = "value"
	}
	pod := stored(b, protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme), labels)
	guard := NewGuard(clientscheme.Scheme)
	b.SetBytes(int64(len(pod)))
	b.ReportAllocs()
	for b.Loop() {
		if err := guard.Check(pod, runtime.ContentTypeProtobuf, corev1.SchemeGroupVersion.WithKind("Pod")); err != nil {
			b.Fatal(err)
		}
	}
}

// TestNestingOfEmbeddedJSON has managed fields that are nested so deep that no JSON decoder reads the response.
func TestNestingOfEmbeddedJSON(t *testing.T) {
	guard := NewGuard(clientscheme.Scheme)
	body := func(levels int) []byte {
		raw := strings.Repeat(`{"f:a":`, levels-1) + "{}" + strings.Repeat("}", levels-1)
		object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{ManagedFields: []metav1.ManagedFieldsEntry{
			{Manager: "first"}, {Manager: "second", FieldsV1: metav1.NewFieldsV1(raw)},
		}}}
		encoded := &bytes.Buffer{}
		if err := protobuf.NewSerializer(clientscheme.Scheme, clientscheme.Scheme).Encode(object, encoded); err != nil {
			t.Fatal(err)
		}
		return encoded.Bytes()
	}
	if err := guard.Check(body(maxEmbeddedNesting), runtime.ContentTypeProtobuf, configMapKind); err != nil {
		t.Errorf("%d levels: %v", maxEmbeddedNesting, err)
	}
	if err := guard.Check(
		body(maxEmbeddedNesting+1), runtime.ContentTypeProtobuf, configMapKind,
	); !errors.Is(err, errEmbedded) {
		t.Errorf("%d levels: %v", maxEmbeddedNesting+1, err)
	}
	text := strings.Repeat(`{"a":`, maxEmbeddedNesting) + "{}" + strings.Repeat("}", maxEmbeddedNesting)
	if err := guard.Check([]byte(text), runtime.ContentTypeJSON, configMapKind); !errors.Is(err, errEmbedded) {
		t.Errorf("JSON: %v", err)
	}
}
