package builtin_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/resource"
)

// Events of events.k8s.io have the core group's internal version, so strategic merge patches must convert between the
// groups.
func TestEventsConvertToTheOtherGroupsInternalVersion(t *testing.T) {
	catalog := resource.NewCatalog(builtin.Definitions(builtin.Options{})...)
	match, ok := catalog.Lookup("events.k8s.io", "v1", "events")
	if !ok {
		t.Fatal("events.k8s.io/v1 events are not served")
	}
	internal, err := match.Version.Codec.Internal(&eventsv1.Event{Reason: "Why", Note: "because"})
	if err != nil {
		t.Fatal(err)
	}
	external, err := match.Version.Codec.External(internal)
	if err != nil {
		t.Fatal(err)
	}
	if event := external.(*eventsv1.Event); event.Reason != "Why" || event.Note != "because" {
		t.Errorf("the event came back as %+v", event)
	}
}

// Events may be stored in either group, depending on the server that wrote them. Both groups serve both.
func TestEventsStoredInEitherGroupAreShownInBoth(t *testing.T) {
	catalog := resource.NewCatalog(builtin.Definitions(builtin.Options{})...)
	serializer := protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme)
	kind := func(version string) metav1.TypeMeta { return metav1.TypeMeta{APIVersion: version, Kind: "Event"} }
	for _, stored := range []runtime.Object{
		&eventsv1.Event{TypeMeta: kind("events.k8s.io/v1"), Reason: "Why", Note: "because"},
		&corev1.Event{TypeMeta: kind("v1"), Reason: "Why", Message: "because"},
	} {
		data := must[[]byte](t)(runtime.Encode(serializer, stored))
		for _, group := range []string{"", "events.k8s.io"} {
			match, _ := catalog.Lookup(group, "v1", "events")
			internal := must[runtime.Object](t)(match.Version.Codec.Load(t.Context(), data)).(*core.Event)
			if internal.Message != "because" {
				t.Errorf("%T loaded for %q: %+v", stored, group, internal)
			}
			external := must[runtime.Object](t)(match.Version.Codec.LoadExternal(t.Context(), data))
			if got := external.GetObjectKind().GroupVersionKind(); got != match.Version.Kind {
				t.Errorf("%T is shown for %q as %v", stored, group, got)
			}
		}
	}
}
