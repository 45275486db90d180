package builtin_test

import (
	"testing"

	eventsv1 "k8s.io/api/events/v1"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/resource"
)

// Events of events.k8s.io have the core group's hub, which a strategic merge patch has to find its way to.
func TestEventsConvertToTheOtherGroupsHub(t *testing.T) {
	catalog := resource.NewCatalog(builtin.Definitions(builtin.Options{})...)
	match, ok := catalog.Lookup("events.k8s.io", "v1", "events")
	if !ok {
		t.Fatal("events.k8s.io/v1 events are not served")
	}
	hub, err := match.Version.Model.Internal(&eventsv1.Event{Reason: "Why", Note: "because"})
	if err != nil {
		t.Fatal(err)
	}
	external, err := match.Version.Model.External(hub)
	if err != nil {
		t.Fatal(err)
	}
	if event := external.(*eventsv1.Event); event.Reason != "Why" || event.Note != "because" {
		t.Errorf("the event came back as %+v", event)
	}
}
