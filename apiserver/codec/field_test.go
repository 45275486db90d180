package codec

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

func TestString(t *testing.T) {
	scheme := clientscheme.Scheme
	path := []Field{{"spec", 2}, {"nodeName", 10}}
	for name, encoder := range map[string]runtime.Encoder{
		"protobuf": protobuf.NewSerializer(scheme, scheme),
		"JSON":     json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{}),
	} {
		for _, want := range []string{"", "node-1", "ü\"\\"} {
			data, err := runtime.Encode(encoder, &corev1.Pod{
				TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
				ObjectMeta: metav1.ObjectMeta{Name: "nodeName", Labels: map[string]string{"nodeName": "x"}},
				Spec:       corev1.PodSpec{NodeName: want, ServiceAccountName: "nodeName"},
			})
			if err != nil {
				t.Fatal(err)
			}
			if got, err := String(data, path); err != nil || got != want {
				t.Errorf("%s: got %q, %v, want %q", name, got, err, want)
			}
			for end := range data { // must not panic
				_, _ = String(data[:end], path)
			}
		}
	}
	for _, malformed := range []string{"", "[]", `{"spec":[]}`, `{"spec":{"nodeName":3}}`, `{"spec":{"nodeName":`} {
		if got, err := String([]byte(malformed), path); err == nil {
			t.Errorf("%s: %q", malformed, got)
		}
	}
	for _, empty := range []string{`{}`, `{"spec":null}`, `{"spec":{}}`, `{"spec":{"nodeName":null}}`} {
		if got, err := String([]byte(empty), path); err != nil || got != "" {
			t.Errorf("%s: %q, %v", empty, got, err)
		}
	}
}
