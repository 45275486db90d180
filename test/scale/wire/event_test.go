package wire

import (
	"encoding/binary"
	"testing"
	"time"

	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/test/measure/samples"
)

// frame returns a frame of a watch as servers encode it.
func frame(t *testing.T, kind string, object runtime.Object) []byte {
	t.Helper()
	event := &meta.WatchEvent{Type: kind, Object: runtime.RawExtension{Raw: samples.Protobuf(object)}}
	encoded, err := event.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(encoded))), encoded...)
}

func TestFramesOfAnyParts(t *testing.T) {
	now := meta.NewTime(time.Unix(1, 0))
	pod := &core.Pod{
		TypeMeta: meta.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: meta.ObjectMeta{
			Name: "pod", Namespace: "space", UID: "uid", ResourceVersion: "17", Generation: 3, DeletionTimestamp: &now,
			Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"other": "x", Sent: "42"},
		},
		Status: core.PodStatus{Phase: core.PodRunning},
	}
	body := append(frame(t, "ADDED", pod), frame(t, "MODIFIED", pod)...)
	for size := 1; size <= len(body); size++ {
		var frames Frames
		var kinds []string
		for rest := body; len(rest) > 0; rest = rest[min(size, len(rest)):] {
			err := frames.Split(rest[:min(size, len(rest))], func(frame []byte) error {
				kinds = append(kinds, checkPod(t, frame))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if len(kinds) != 2 || kinds[0] != "ADDED" || kinds[1] != "MODIFIED" {
			t.Fatalf("parts of %d bytes: got %v", size, kinds)
		}
	}
}

func checkPod(t *testing.T, frame []byte) (kind string) {
	t.Helper()
	kind, object, err := ParseEvent(frame)
	if err != nil {
		t.Fatal(err)
	}
	m, err := ParseMetadata(object)
	if err != nil {
		t.Fatal(err)
	}
	if string(m.Name) != "pod" || string(m.Namespace) != "space" || string(m.UID) != "uid" || m.Revision != 17 ||
		!m.Deleting || m.Sent != 42 || m.InitialEventsEnd {
		t.Fatalf("got %+v", m)
	}
	if phase, err := Field(object, 3, 1); err != nil || string(phase) != "Running" {
		t.Fatalf("phase %q, %v", phase, err)
	}
	return kind
}

func TestTruncatedMessages(t *testing.T) {
	encoded := frame(t, "ADDED", &core.Pod{ObjectMeta: meta.ObjectMeta{Name: "pod", ResourceVersion: "17"}})[4:]
	if _, _, err := ParseEvent(encoded[:len(encoded)-1]); err == nil {
		t.Error("no error for a truncated event")
	}
	if _, err := ParseObject([]byte("{}")); err == nil {
		t.Error("no error for JSON")
	}
}
