package builtin_test

import (
	"encoding/json"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/managedfields"

	"quorate.dev/apiserver/resource"
)

// TestAppliersShareADeployment applies parts of one object by two managers: each owns its container, and neither
// may change the other's.
func TestAppliersShareADeployment(t *testing.T) {
	match, _ := resource.NewCatalog(definitions()...).Lookup("apps", "v1", "deployments")
	manager := must[*managedfields.FieldManager](t)(match.Version.Endpoints[""].FieldManager())
	hub := match.Version.Model.NewExternal() // as an apply that creates begins
	apply := func(name, container, image string) error {
		patch := &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"template":{"spec":{"containers":[{"name":"`+
			container+`","image":"`+image+`"}]}}}}`), patch); err != nil {
			t.Fatal(err)
		}
		applied, err := manager.Apply(hub, patch, name, false)
		if err == nil {
			hub = applied
		}
		return err
	}
	for _, step := range []struct {
		manager, container, image string
		conflict                  bool
	}{
		{"alice", "main", "a:1", false},
		{"bob", "side", "b:1", false},
		{"bob", "main", "b:1", true},
		{"alice", "main", "a:2", false},
	} {
		if err := apply(step.manager, step.container, step.image); apierrors.IsConflict(err) != step.conflict || (err != nil) != step.conflict {
			t.Errorf("%+v: %v", step, err)
		}
	}
	external := must[runtime.Object](t)(match.Version.Model.External(hub)).(*appsv1.Deployment)
	if got := external.Spec.Template.Spec.Containers; len(got) != 2 || got[0].Image != "a:2" {
		t.Errorf("containers %v", got)
	}
	if accessor := must[metav1.Object](t)(meta.Accessor(hub)); len(accessor.GetManagedFields()) != 2 {
		t.Errorf("managed fields %v", accessor.GetManagedFields())
	}
}

// TestStatusIsNotOwnedThroughTheMainEndpoint checks that the fields a strategy resets are not tracked.
func TestStatusIsNotOwnedThroughTheMainEndpoint(t *testing.T) {
	match, _ := resource.NewCatalog(definitions()...).Lookup("apps", "v1", "deployments")
	live := match.Version.Model.New()
	changed := decode(t, match.Version.Model, []byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"paused":true},"status":{"replicas":3}}`), runtime.ContentTypeJSON)
	for subresource, owned := range map[string]string{"": "f:spec", "status": "f:status"} {
		manager := must[*managedfields.FieldManager](t)(match.Version.Endpoints[subresource].FieldManager())
		updated := must[runtime.Object](t)(manager.Update(live, changed.DeepCopyObject(), "alice"))
		entries := must[metav1.Object](t)(meta.Accessor(updated)).GetManagedFields()
		if len(entries) != 1 || entries[0].Subresource != subresource {
			t.Fatalf("%q: entries %v", subresource, entries)
		}
		var fields map[string]any
		if err := json.Unmarshal(entries[0].FieldsV1.Raw, &fields); err != nil {
			t.Fatal(err)
		}
		for _, field := range []string{"f:spec", "f:status"} {
			if _, found := fields[field]; found != (field == owned) {
				t.Errorf("endpoint %q owns %v", subresource, fields)
			}
		}
	}
}
