package codec

import (
	"bytes"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/ptr"
)

var (
	podKind     = corev1.SchemeGroupVersion.WithKind("Pod")
	podListKind = corev1.SchemeGroupVersion.WithKind("PodList")
)

func pods() []corev1.Pod {
	return []corev1.Pod{
		{ObjectMeta: metav1.ObjectMeta{Name: "a", ResourceVersion: "1", Labels: map[string]string{"x": "<&>"}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "b", ResourceVersion: "2"}, Spec: corev1.PodSpec{NodeName: "n"}},
		{},
	}
}

// encoders has upstream's encoders.
func encoders() map[Media]runtime.Encoder {
	scheme := clientscheme.Scheme
	return map[Media]runtime.Encoder{
		JSON:     json.NewSerializerWithOptions(json.DefaultMetaFactory, scheme, scheme, json.SerializerOptions{}),
		Protobuf: protobuf.NewSerializer(scheme, scheme),
	}
}

func encodeUpstream(t *testing.T, media Media, object runtime.Object, kind schema.GroupVersionKind) []byte {
	t.Helper()
	object.GetObjectKind().SetGroupVersionKind(kind)
	data, err := runtime.Encode(encoders()[media], object)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func itemOf(t *testing.T, media Media, object runtime.Object) []byte {
	t.Helper()
	item, err := Item(media, object)
	if err != nil {
		t.Fatal(err)
	}
	return item
}

func TestListIsUpstreams(t *testing.T) {
	for _, media := range []Media{JSON, Protobuf} {
		for _, count := range []int{-1, 0, 1, 3} { // -1: nil
			list := &corev1.PodList{
				ListMeta: metav1.ListMeta{ResourceVersion: "9", Continue: "c", RemainingItemCount: ptr.To[int64](4)},
			}
			var items []Encoding
			if count >= 0 {
				list.Items, items = append([]corev1.Pod{}, pods()[:count]...), []Encoding{}
			}
			for i := range list.Items {
				items = append(items, Whole(itemOf(t, media, &list.Items[i])))
			}
			body, err := NewListBody(media, podListKind, list.ListMeta, nil, items)
			if err != nil {
				t.Fatal(err)
			}
			got := body.AppendHead(nil)
			for i := range body.Len() {
				got = body.AppendItem(got, i)
			}
			got = body.AppendTail(got)
			if want := encodeUpstream(t, media, list, podListKind); !bytes.Equal(got, want) {
				t.Errorf("media %d, %d items: got %q, want %q", media, count, got, want)
			}
			if body.Size() != len(got) {
				t.Errorf("media %d, %d items: size %d, want %d", media, count, body.Size(), len(got))
			}
		}
	}
}

func TestObjectIsUpstreams(t *testing.T) {
	for _, pod := range pods() {
		got := append(AppendObject(nil, podKind, false, itemOf(t, JSON, &pod)), '\n')
		if want := encodeUpstream(t, JSON, &pod, podKind); !bytes.Equal(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
		got = AppendEnvelope(nil, podKind, itemOf(t, Protobuf, &pod))
		if want := encodeUpstream(t, Protobuf, &pod, podKind); !bytes.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

func TestWatchFrameIsUpstreams(t *testing.T) {
	pod := pods()[0]
	event := &metav1.WatchEvent{
		Type: "ADDED", Object: runtime.RawExtension{Raw: bytes.TrimSpace(encodeUpstream(t, JSON, &pod, podKind))},
	}
	var want bytes.Buffer
	if err := encoders()[JSON].Encode(event, &want); err != nil {
		t.Fatal(err)
	}
	if got := WatchFrame(JSON, "ADDED", podKind, false, itemOf(t, JSON, &pod)); !bytes.Equal(got, want.Bytes()) {
		t.Errorf("got %s, want %s", got, want.Bytes())
	}
	event.Object.Raw = encodeUpstream(t, Protobuf, &pod, podKind)
	want.Reset()
	frames := protobuf.LengthDelimitedFramer.NewFrameWriter(&want)
	if err := protobuf.NewRawSerializer(clientscheme.Scheme, clientscheme.Scheme).Encode(event, frames); err != nil {
		t.Fatal(err)
	}
	if got := WatchFrame(Protobuf, "ADDED", podKind, false, itemOf(t, Protobuf, &pod)); !bytes.Equal(got, want.Bytes()) {
		t.Errorf("got %q, want %q", got, want.Bytes())
	}
}

func TestUntypedListNamesContinue(t *testing.T) {
	body, err := NewUntypedListBody(JSON, schema.GroupVersionKind{Group: "g", Version: "v1", Kind: "XList"},
		metav1.ListMeta{ResourceVersion: "3"}, []Encoding{})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"kind":"XList","apiVersion":"g/v1","metadata":{"resourceVersion":"3","continue":""},"items":[]}` + "\n"
	if got := string(body.AppendTail(body.AppendHead(nil))); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestFrameOfStoredBytes appends frames around items that are made of stored bytes, after other bytes. They are the
// frames of the complete items.
func TestFrameOfStoredBytes(t *testing.T) {
	pod := pods()[0]
	pod.ResourceVersion = "" // as in storage
	for _, kind := range []schema.GroupVersionKind{podKind, {Group: "example.com", Version: "v1beta1", Kind: "Thing"}} {
		stored := AppendEnvelope(nil, kind, itemOf(t, Protobuf, &pod))
		for _, revision := range []int64{7, 1234567} {
			item, ok := AsStored(stored, revision, false)
			if !ok {
				t.Fatal("the stored bytes are not used")
			}
			want := "before" + string(WatchFrame(Protobuf, "ADDED", kind, false, item.Bytes()))
			got := AppendWatchFrame([]byte("before"), Protobuf, "ADDED", kind, false, item)
			if string(got) != want {
				t.Errorf("%s at %d: got %q, want %q", kind, revision, got, want)
			}
			roomy := make([]byte, 0, len(got))
			if n := testing.AllocsPerRun(10, func() {
				AppendWatchFrame(roomy, Protobuf, "ADDED", kind, false, item)
			}); n > 0 {
				t.Errorf("%s: %.0f allocations", kind, n)
			}
		}
	}
}
