package registry_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
)

// soon is the time in which a request must be served on a busy machine. Without the limits, the requests of these tests
// take minutes.
const soon = 20 * time.Second

// costs has a server and the target of the ConfigMap "default/large".
type costs struct {
	*builtintest.Server
	ctx    context.Context
	target resource.Target
}

func newCosts(t *testing.T) *costs {
	t.Helper()
	c := &costs{Server: builtintest.NewServer(t, builtin.Options{}, nil)}
	match, ok := c.Catalog.Current().Lookup("", "v1", "configmaps")
	if !ok {
		t.Fatal("no ConfigMaps")
	}
	c.target = resource.Target{Match: match, Endpoint: match.Version.Endpoints[""], Namespace: "default", Name: "large"}
	c.ctx = genericrequest.WithNamespace(builtintest.WithUser(t.Context(), "alice", "system:masters"), "default")
	return c
}

func (c *costs) create(object runtime.Object) (*registry.Result, error) {
	return c.Registry.Create(c.ctx, c.target, object, registry.WriteOptions{Manager: "test"})
}

func (c *costs) patch(kind types.PatchType, data string) (*registry.Result, error) {
	return c.Registry.Patch(c.ctx, c.target, change.Patch{
		Type: kind, Data: []byte(data), Manager: "test", Validation: resource.Warn,
	}, registry.WriteOptions{Manager: "test"})
}

// isQuick fails the test if an action takes longer than soon.
func isQuick(t *testing.T, what string, action func()) {
	t.Helper()
	began := time.Now()
	action()
	if took := time.Since(began); took > soon {
		t.Errorf("%s took %v", what, took)
	}
}

// large returns a ConfigMap with so many keys.
func large(keys int) *core.ConfigMap {
	data := map[string]string{}
	for i := range keys {
		data[fmt.Sprint("k", i)] = ""
	}
	return &core.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "large", Namespace: "default"}, Data: data}
}

// TestManyFieldsAreNotTracked writes objects with so many keys that tracking each would take seconds.
func TestManyFieldsAreNotTracked(t *testing.T) {
	c := newCosts(t)
	isQuick(t, "create", func() {
		result, err := c.create(large(70_000))
		if err != nil {
			t.Fatal(err)
		}
		if managed := result.Object.(metav1.Object).GetManagedFields(); managed != nil {
			t.Errorf("%d managers are tracked", len(managed))
		}
	})
	isQuick(t, "merge patch", func() {
		result, err := c.patch(types.MergePatchType, `{"metadata":{"labels":{"a":"b"}}}`)
		if err != nil || result.Object.(metav1.Object).GetLabels()["a"] != "b" {
			t.Fatal("merge patch: ", err)
		}
	})
	isQuick(t, "apply", func() {
		_, err := c.patch(types.ApplyYAMLPatchType,
			`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"large"},"data":{"a":"b"}}`)
		if !apierrors.IsRequestEntityTooLargeError(err) {
			t.Error("apply: ", err)
		}
	})
	// An object that became small again is tracked again.
	if _, err := c.patch(types.JSONPatchType, `[{"op":"replace","path":"/data","value":{"a":"b"}}]`); err != nil {
		t.Fatal(err)
	}
	result, err := c.patch(types.ApplyYAMLPatchType,
		`{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"large"},"data":{"c":"d"}}`)
	if err != nil || len(result.Object.(metav1.Object).GetManagedFields()) == 0 {
		t.Errorf("apply to a small object: %v", err)
	}
}

// TestManyManagedFields creates an object whose managed fields have many names.
func TestManyManagedFields(t *testing.T) {
	c := newCosts(t)
	names := map[string]any{}
	for i := range 100_000 {
		names[fmt.Sprint("f:", i)] = map[string]any{}
	}
	raw, err := json.Marshal(map[string]any{"f:data": names})
	if err != nil {
		t.Fatal(err)
	}
	object := large(1)
	object.ManagedFields = []metav1.ManagedFieldsEntry{{
		Manager: "other", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1",
		FieldsV1: metav1.NewFieldsV1(string(raw)),
	}}
	isQuick(t, "create", func() {
		result, err := c.create(object)
		if err != nil || len(result.Object.(metav1.Object).GetManagedFields()) != 0 {
			t.Errorf("managed fields are kept, %v", err)
		}
	})
}

// TestStrategicMergePatchIsBounded patches 6,000 owner references, which upstream compares with each other.
func TestStrategicMergePatchIsBounded(t *testing.T) {
	c := newCosts(t)
	if _, err := c.create(large(1)); err != nil {
		t.Fatal(err)
	}
	owners := func(number int) string {
		references := make([]string, number)
		for i := range references {
			references[i] = fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","name":"n%d","uid":"u%d"}`, i, i)
		}
		return `{"metadata":{"ownerReferences":[` + strings.Join(references, ",") + `]}}`
	}
	for range 2 {
		if _, err := c.patch(types.StrategicMergePatchType, owners(500)); err != nil {
			t.Errorf("500 owner references: %v", err)
		}
	}
	isQuick(t, "6,000 owner references", func() {
		_, err := c.patch(types.StrategicMergePatchType, owners(6000))
		if !apierrors.IsRequestEntityTooLargeError(err) ||
			!strings.Contains(err.Error(), "use a merge patch or server-side apply") {
			t.Errorf("6,000 owner references: %v", err)
		}
	})
	if _, err := c.patch(types.MergePatchType, owners(6000)); err != nil {
		t.Errorf("merge patch: %v", err)
	}
}

// TestOwnersOfOneObject creates an object with many owner references that differ in the name only.
func TestOwnersOfOneObject(t *testing.T) {
	c := newCosts(t)
	object := large(1)
	yes := true
	for i := range 30_000 {
		object.OwnerReferences = append(object.OwnerReferences,
			metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: fmt.Sprint(i), UID: "u", BlockOwnerDeletion: &yes})
	}
	same := object.OwnerReferences[0]
	also := true
	same.BlockOwnerDeletion = &also
	object.OwnerReferences = append(object.OwnerReferences, same)
	isQuick(t, "create", func() {
		result, err := c.create(object)
		if err != nil {
			t.Fatal(err)
		}
		if owners := len(result.Object.(metav1.Object).GetOwnerReferences()); owners != 30_000 {
			t.Errorf("%d owner references", owners)
		}
	})
}

// TestWorkEndsWithTheRequest sends invalid objects in requests that have ended: they are not validated.
func TestWorkEndsWithTheRequest(t *testing.T) {
	c := newCosts(t)
	if _, err := c.create(large(1)); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(c.ctx)
	cancel()
	c.ctx = ended
	invalid := large(1)
	invalid.Data["?"] = ""
	if _, err := c.create(invalid); !errors.Is(err, context.Canceled) {
		t.Errorf("create: %v", err)
	}
	if _, err := c.patch(types.MergePatchType, `{"data":{"?":""}}`); !errors.Is(err, context.Canceled) {
		t.Errorf("patch: %v", err)
	}
}

// TestErrorsWithLargeValues creates an object with owner references that are invalid together: each error contains all
// of them.
func TestErrorsWithLargeValues(t *testing.T) {
	c := newCosts(t)
	yes := true
	for _, owners := range []struct{ number, size int }{{20_000, 1}, {50, 40_000}} {
		object := large(1)
		for range owners.number {
			object.OwnerReferences = append(object.OwnerReferences, metav1.OwnerReference{
				APIVersion: "v1", Kind: "Pod", Name: strings.Repeat("x", owners.size), UID: "u", Controller: &yes,
			})
		}
		// Equal references are removed, so that each has a UID of its own.
		for i := range object.OwnerReferences {
			object.OwnerReferences[i].UID = types.UID(fmt.Sprint(i))
		}
		isQuick(t, "create", func() {
			_, err := c.create(object)
			if !apierrors.IsInvalid(err) || !strings.HasSuffix(err.Error(), " errors)") || len(err.Error()) > 10<<20 {
				t.Errorf("%d owner references of %d bytes: %.200v", owners.number, owners.size, err)
			}
		})
	}
}
