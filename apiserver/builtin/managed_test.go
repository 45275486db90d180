package builtin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/resource"
)

// TestAppliersShareADeployment applies parts of one object by two managers. Each owns its container; a change of the
// other's is a conflict.
func TestAppliersShareADeployment(t *testing.T) {
	match, _ := resource.NewCatalog(definitions()...).Lookup("apps", "v1", "deployments")
	manager := must[*managedfields.FieldManager](t)(match.Version.Endpoints[""].FieldManager())
	internal := match.Version.Codec.NewExternal() // the start of an apply that creates
	apply := func(name, container, image string) error {
		patch := &unstructured.Unstructured{}
		if err := json.Unmarshal([]byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"template":{"spec":{"containers":[{"name":"`+
			container+`","image":"`+image+`"}]}}}}`), patch); err != nil {
			t.Fatal(err)
		}
		applied, err := manager.Apply(internal, patch, name, false)
		if err == nil {
			internal = applied
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
		if err := apply(step.manager, step.container, step.image); apierrors.IsConflict(err) != step.conflict ||
			(err != nil) != step.conflict {
			t.Errorf("%+v: %v", step, err)
		}
	}
	external := must[runtime.Object](t)(match.Version.Codec.External(internal)).(*appsv1.Deployment)
	if got := external.Spec.Template.Spec.Containers; len(got) != 2 || got[0].Image != "a:2" {
		t.Errorf("containers %v", got)
	}
	if accessor := must[metav1.Object](t)(meta.Accessor(internal)); len(accessor.GetManagedFields()) != 2 {
		t.Errorf("managed fields %v", accessor.GetManagedFields())
	}
}

// TestStatusIsNotOwnedThroughTheMainEndpoint: fields that a strategy resets are not tracked.
func TestStatusIsNotOwnedThroughTheMainEndpoint(t *testing.T) {
	match, _ := resource.NewCatalog(definitions()...).Lookup("apps", "v1", "deployments")
	live := match.Version.Codec.New()
	changed := decode(t, match.Version.Codec,
		[]byte(`{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web"},"spec":{"paused":true},"status":{"replicas":3}}`), runtime.ContentTypeJSON)
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

var configMapsResource = schema.GroupResource{Resource: "configmaps"}

// applyKey applies one key of a ConfigMap with its own field manager.
func applyKey(ctx context.Context, s *builtintest.Server, name, key string) error {
	_, err := s.Apply(resource.WithManager(ctx, "manager-of-"+key), resource.Key{
		GroupResource: configMapsResource, Namespace: "default", Name: name,
	}, map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]any{"name": name}, "data": map[string]any{key: "set"},
	}, resource.WriteOptions{})
	return err
}

// TestConcurrentApplications: concurrent applies of one object that does not exist yet are all merged.
func TestConcurrentApplications(t *testing.T) {
	const managers = 10
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	for round := range 5 {
		name := fmt.Sprintf("shared-%d", round)
		var group sync.WaitGroup
		for i := range managers {
			group.Go(func() {
				if err := applyKey(t.Context(), s, name, fmt.Sprintf("k%d", i)); err != nil {
					t.Error(err)
				}
			})
		}
		group.Wait()
		stored := must[runtime.Object](t)(s.Get(t.Context(),
			resource.Key{GroupResource: configMapsResource, Namespace: "default", Name: name},
			resource.ReadOptions{})).(*core.ConfigMap)
		if len(stored.Data) != managers || len(stored.ManagedFields) != managers {
			t.Errorf("%d keys of %d managers", len(stored.Data), len(stored.ManagedFields))
		}
	}
}

// refusing is an admission plugin that rejects every write.
type refusing struct{}

func (refusing) Validate(context.Context, *admission.Attributes) error { return errors.New("refused") }

// TestApplicationsOfTheServer: plugins without Internal do not see the server's own writes.
func TestApplicationsOfTheServer(t *testing.T) {
	all := []admission.Operation{admission.Create, admission.Update}
	s := builtintest.NewServer(t, builtin.Options{}, &admission.Chain{
		Plugins: []admission.Plugin{{Operations: all, Validator: refusing{}}},
	})
	for _, key := range []string{"created", "updated"} {
		if err := applyKey(t.Context(), s, "own", key); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
}
