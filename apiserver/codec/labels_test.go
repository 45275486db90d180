package codec

import (
	"bytes"
	gojson "encoding/json"
	"maps"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

func stored(t testing.TB, encoder runtime.Encoder, labels map[string]string) []byte {
	t.Helper()
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "p", Labels: labels, Annotations: map[string]string{"a": "b"}},
		Spec:       corev1.PodSpec{NodeSelector: map[string]string{"not": "a label"}},
	}
	data, err := runtime.Encode(encoder, pod)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestLabels(t *testing.T) {
	scheme := clientscheme.Scheme
	for name, encoder := range map[string]runtime.Encoder{
		"protobuf": protobuf.NewSerializer(scheme, scheme),
		"JSON":     json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{}),
	} {
		for _, want := range []map[string]string{nil, {"a": "b"}, {"a": "", "b": "c", "long/key": "ü"}} {
			got, err := Labels(stored(t, encoder, want))
			if err != nil || !maps.Equal(got, want) {
				t.Errorf("%s: got %v, want %v: %v", name, got, want, err)
			}
		}
	}
}

func TestUID(t *testing.T) {
	scheme := clientscheme.Scheme
	for name, encoder := range map[string]runtime.Encoder{
		"protobuf": protobuf.NewSerializer(scheme, scheme),
		"JSON":     json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{}),
		"YAML": json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme,
			json.SerializerOptions{Yaml: true}),
	} {
		for _, want := range []string{"", "e9c1a4a6-3b1f-4a6c-8d53-2f5f0b6f8f11"} {
			data, err := runtime.Encode(encoder, &corev1.Pod{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
				ObjectMeta: metav1.ObjectMeta{
					Name: "p", UID: types.UID(want), OwnerReferences: []metav1.OwnerReference{{UID: "other"}},
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := UID(data); err != nil || got != want {
				t.Errorf("%s: got %q, want %q: %v", name, got, want, err)
			}
		}
	}
	for _, damaged := range []string{"k8s\x00\xff", "[]", `{"metadata":{"uid":1}}`} {
		if got, err := UID([]byte(damaged)); err == nil {
			t.Errorf("%q: got %q without an error", damaged, got)
		}
	}
}

// FuzzLabels never panics, and finds the labels of every object that can be decoded.
func FuzzLabels(f *testing.F) {
	scheme := clientscheme.Scheme
	serializer := protobuf.NewSerializer(scheme, scheme)
	f.Add(stored(f, serializer, nil))
	f.Add(stored(f, serializer, map[string]string{"a": "b", "": ""}))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = Labels(data)
		var unknown runtime.Unknown
		var pod corev1.Pod
		raw, ok := bytes.CutPrefix(data, protobufMagic)
		if !ok || unknown.Unmarshal(raw) != nil || pod.Unmarshal(unknown.Raw) != nil {
			return
		}
		// Encoded again, because decoders accept more than encoders write, such as repeated metadata.
		pod.SetGroupVersionKind(podKind)
		canonical, err := runtime.Encode(serializer, &pod)
		if err != nil {
			return
		}
		labels, err := Labels(canonical)
		if err != nil || !maps.Equal(labels, pod.Labels) {
			t.Fatalf("got %v, want %v: %v", labels, pod.Labels, err)
		}
	})
}

// FuzzScanMembers finds the members of every JSON object that the standard library decodes, and never panics.
func FuzzScanMembers(f *testing.F) {
	for _, text := range []string{
		`{}`, ` { "a" : 1 , "b" : "\\" , "c":"\\\"" } `, `{"a":[1,{"b":"]}"}],"d":null,"e":-1.5e3,"f":true}`,
		`{"metadata":{"labels":{"a":"b"}}}`, `{"a"`, `{"a":`, `{"a":1`, `{"a":"`, `{"a":1,`, `{,}`, `[]`, `"a"`, ``,
		`{"a":}`, `{"\u0061":1}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		got := map[string]string{}
		ok := scanMembers(text, func(name, value []byte) bool {
			got[string(name)] = string(value)
			return true
		})
		_, _ = Labels(text)
		_, _ = storedKind{}.Interpret(text)
		var want map[string]gojson.RawMessage
		if gojson.Unmarshal(text, &want) != nil || want == nil || bytes.IndexByte(text, '\\') >= 0 || !utf8.Valid(text) {
			return
		}
		if !ok || len(got) != len(want) {
			t.Fatalf("%s: got %v, %t", text, got, ok)
		}
		for name, value := range want {
			if got[name] != string(value) {
				t.Errorf("%s: %s is %s, want %s", text, name, got[name], value)
			}
		}
	})
}
