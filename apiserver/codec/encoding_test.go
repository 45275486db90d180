package codec

import (
	"bytes"
	"math"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// TestAsStored inserts revisions into stored pods. The names reach the size at which the length of metadata takes
// another byte.
func TestAsStored(t *testing.T) {
	for _, revision := range []int64{1, 9, 10, 12345, math.MaxInt64} {
		for length := range 140 {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("n", length), Labels: map[string]string{"a": "b"}},
				Spec:       corev1.PodSpec{NodeName: "m"},
			}
			stored := encodeUpstream(t, Protobuf, pod, podKind)
			setRevision(pod, revision)
			for metadataOnly, object := range map[bool]runtime.Object{false: pod, true: Metadata(pod)} {
				encoding, ok := AsStored(stored, revision, metadataOnly)
				item := itemOf(t, Protobuf, object)
				if !ok || !encoding.IsItem(item) || !bytes.Equal(encoding.Bytes(), item) || encoding.Size() != len(item) {
					t.Fatalf("revision %d, name of %d, metadata only %t: %t, %q, want %q", revision, length, metadataOnly,
						ok, encoding.Bytes(), item)
				}
			}
		}
	}
}

func setRevision(object metav1.Object, revision int64) {
	var digits []byte
	for ; revision > 0; revision /= 10 {
		digits = append([]byte{byte('0' + revision%10)}, digits...)
	}
	object.SetResourceVersion(string(digits))
}

// TestIsNotAsStored has items that must be kept whole.
func TestIsNotAsStored(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	withRevision := pod.DeepCopy()
	withRevision.ResourceVersion = "7"
	for what, stored := range map[string][]byte{
		"nothing": nil, "JSON": encodeUpstream(t, JSON, pod, podKind),
		"a stored revision": encodeUpstream(t, Protobuf, withRevision, podKind),
		"no metadata":       AppendEnvelope(nil, podKind, nil), "cut off": encodeUpstream(t, Protobuf, pod, podKind)[:12],
	} {
		if encoding, ok := AsStored(stored, 7, false); ok {
			t.Errorf("%s: %q", what, encoding.Bytes())
		}
	}
	defaulted := pod.DeepCopy()
	defaulted.ResourceVersion = "7"
	defaulted.Spec.RestartPolicy = corev1.RestartPolicyAlways
	if encoding, _ := AsStored(
		encodeUpstream(t, Protobuf, pod, podKind), 7, false,
	); encoding.IsItem(itemOf(t, Protobuf, defaulted)) {
		t.Error("an object stored without a default equals the one with it")
	}
}

func FuzzAsStored(f *testing.F) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	pod.GetObjectKind().SetGroupVersionKind(podKind)
	stored, err := runtime.Encode(encoders()[Protobuf], pod)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(stored, int64(1), true)
	f.Add(stored[:20], int64(math.MaxInt64), false)
	f.Fuzz(func(t *testing.T, stored []byte, revision int64, metadataOnly bool) {
		encoding, ok := AsStored(stored, max(revision, 1), metadataOnly)
		if ok && encoding.IsItem(encoding.Bytes()) && len(encoding.Bytes()) != encoding.Size() {
			t.Errorf("%d bytes, size %d", len(encoding.Bytes()), encoding.Size())
		}
	})
}
