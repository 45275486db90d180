package encoding

import (
	"bytes"
	"encoding/json"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/watch"
	clientscheme "k8s.io/client-go/kubernetes/scheme"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/resource"
)

// pods returns the resource of pods, with v1 as its internal version.
func pods() resource.Match {
	kind := corev1.SchemeGroupVersion.WithKind("Pod")
	version := &resource.Version{
		Name: "v1", Kind: kind,
		Codec: codec.NewScheme(clientscheme.Scheme, clientscheme.Codecs, kind, kind.GroupVersion(), kind.GroupVersion()),
	}
	decorate := func(internal runtime.Object) { internal.(*corev1.Pod).Status.Reason = "Decorated" }
	return resource.Match{
		Definition: &resource.Definition{
			Plural: "pods", ListKind: "PodList", Versions: []*resource.Version{version}, Decorate: decorate,
		},
		Version: version,
	}
}

func store(t *testing.T, m resource.Match) []byte {
	t.Helper()
	stored, err := m.Version.Codec.Store(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"x": "y"}}, Spec: corev1.PodSpec{NodeName: "n"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return stored
}

// formats returns all formats of a resource by their descriptions.
func formats(m resource.Match) map[string]Format {
	all := map[string]Format{}
	for media, name := range map[codec.Media]string{codec.JSON: "JSON", codec.Protobuf: "protobuf"} {
		for shape, part := range []string{
			Whole: "whole", Undecorated: "undecorated", Metadata: "metadata", MetadataV1beta1: "v1beta1 metadata",
		} {
			all[name+", "+part] = Format{Resource: m, Media: media, Shape: Shape(shape)}
		}
	}
	return all
}

// TestFormatsAreKeys checks that formats are equal exactly if they are made of the same parts.
func TestFormatsAreKeys(t *testing.T) {
	one, other := pods(), pods()
	seen := map[Format]string{}
	for _, m := range []resource.Match{one, other} {
		for name, format := range formats(m) {
			framed := []Format{format}
			for _, event := range []watch.EventType{watch.Added, watch.Modified, watch.Deleted} {
				framed = append(framed, format.Framed(event))
			}
			for frame, f := range framed {
				name := fmt.Sprintf("%s, frame %d, version %p", name, frame, m.Version)
				if same, taken := seen[f]; taken {
					t.Errorf("%s equals %s", name, same)
				}
				seen[f] = name
			}
		}
	}
	for name, format := range formats(one) {
		if _, known := seen[format]; !known {
			t.Errorf("%s does not equal itself", name)
		}
	}
}

// TestEncode decodes bodies as clients do, and compares trimmed items with whole ones.
func TestEncode(t *testing.T) {
	m := pods()
	stored := store(t, m)
	for name, format := range formats(m) {
		item, err := format.Encode(t.Context(), stored, 12)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		kept := format.Trim(item, stored, 12)
		if got := format.Assemble(kept, stored, 12).Bytes(); !bytes.Equal(got, item) {
			t.Errorf("%s: assembled %q, want %q", name, got, item)
		}
		if got, want := kept == nil, name == "protobuf, metadata" || name == "protobuf, v1beta1 metadata"; want && !got {
			t.Errorf("%s: %q is kept although it is as stored", name, kept)
		}
		checkBody(t, name, format, format.Envelope().Body(item))
	}
}

func checkBody(t *testing.T, name string, format Format, body []byte) {
	t.Helper()
	decoded, kind, err := clientscheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
	if format.metadataOnly() {
		scheme := runtime.NewScheme()
		scheme.AddKnownTypeWithName(format.Envelope().Kind, &metav1.PartialObjectMetadata{})
		partial := &metav1.PartialObjectMetadata{}
		if format.Media == codec.JSON {
			err = json.Unmarshal(body, partial)
			group := partial.GroupVersionKind()
			decoded, kind = partial, &group
		} else {
			decoded, kind, err = protobuf.NewSerializer(scheme, scheme).Decode(body, nil, partial)
		}
	}
	if err != nil || *kind != format.Envelope().Kind {
		t.Fatalf("%s: %q decodes to a %v: %v", name, body, kind, err)
	}
	if object := decoded.(metav1.Object); object.GetName() != "a" || object.GetResourceVersion() != "12" {
		t.Errorf("%s: got %s at %s", name, object.GetName(), object.GetResourceVersion())
	}
	if pod, ok := decoded.(*corev1.Pod); ok && (pod.Status.Reason == "Decorated") != (format.Shape == Whole) {
		t.Errorf("%s: reason %q", name, pod.Status.Reason)
	}
}

// TestDryRun leaves the object of revision 0 without a resourceVersion.
func TestDryRun(t *testing.T) {
	m := pods()
	item, err := Format{Resource: m}.Encode(t.Context(), store(t, m), 0)
	if err != nil || bytes.Contains(item, []byte("resourceVersion")) {
		t.Errorf("got %s, %v", item, err)
	}
}

func TestList(t *testing.T) {
	m := pods()
	for _, test := range []struct {
		format Format
		items  []codec.Encoding
		want   string
	}{
		{
			Format{Resource: m}, []codec.Encoding{codec.Whole([]byte(`{"x":1}`))},
			`{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"x":1}]}`,
		},
		{Format{Resource: m}, []codec.Encoding{}, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[]}`},
		{Format{Resource: m, Shape: MetadataV1beta1}, []codec.Encoding{codec.Whole([]byte(`{"x":1}`))},
			`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1beta1","metadata":{},` +
				`"items":[{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1beta1","x":1}]}`},
		{
			Format{Resource: m, Shape: Metadata}, []codec.Encoding{},
			`{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{},"items":null}`,
		},
	} {
		body, err := test.format.List(test.items, metav1.ListMeta{})
		if err != nil {
			t.Fatal(err)
		}
		got := body.AppendHead(nil)
		for i := range body.Len() {
			got = body.AppendItem(got, i)
		}
		if got = body.AppendTail(got); string(got) != test.want+"\n" {
			t.Errorf("got %s, want %s", got, test.want)
		}
	}
}

// TestCustomResourcesNameTheirKind encodes custom resources: their items are complete, so that no apiVersion and kind
// are added to them.
func TestCustomResourcesNameTheirKind(t *testing.T) {
	m := pods()
	m.Definition.Source = resource.Custom
	const item = `{"apiVersion":"v1","kind":"Pod"}`
	if got := (Format{Resource: m}).Envelope().Body([]byte(item)); string(got) != item+"\n" {
		t.Errorf("got %s", got)
	}
	want := `{"type":"ADDED","object":` + item + "}\n"
	if got := (Format{Resource: m}).Envelope().Frame(watch.Added, []byte(item)); string(got) != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
