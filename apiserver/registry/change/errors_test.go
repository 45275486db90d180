package change_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/apps"
	autoscaling "k8s.io/kubernetes/pkg/apis/autoscaling"

	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
)

// entries returns numbered JSON elements, joined by commas.
func entries(format string, number int) string {
	all := make([]string, number)
	for i := range all {
		all[i] = fmt.Sprintf(format, i)
	}
	return strings.Join(all, ",")
}

// TestPatchStatus checks the statuses of patches that cannot be applied: 400 for a malformed patch, 413 for a patch
// that takes too much work, and 422 for a patch that does not fit the object.
func TestPatchStatus(t *testing.T) {
	t.Parallel()
	owners := entries(`{"apiVersion":"v1","kind":"Pod","name":"p","uid":"%d"}`, 3000)
	for name, test := range map[string]struct {
		patch types.PatchType
		data  string
		code  int
		err   string // part of the message
	}{
		"JSON patch that is no JSON": {types.JSONPatchType, `[`, http.StatusBadRequest, "unexpected end of JSON input"},
		"JSON patch that tests the object without a value": {
			types.JSONPatchType, `[{"op":"test","path":""}]`, http.StatusBadRequest, "",
		},
		"JSON patch that fails a test": {
			types.JSONPatchType, `[{"op":"test","path":"/kind","value":"Pod"}]`, http.StatusUnprocessableEntity,
			"rejected our request due to an error",
		},
		"JSON patch that moves a long list again and again": {types.JSONPatchType,
			`[{"op":"add","path":"/metadata/finalizers","value":[` + entries(`"%d"`, 20_000) + `]},` +
				entries(`{"op":"add","path":"/metadata/finalizers/0","value":"%d"}`, 9_000) + `]`,
			http.StatusRequestEntityTooLarge, ""},
		"merge patch that is no JSON": {types.MergePatchType, `{"a"`, http.StatusBadRequest, ""},
		"strategic merge patch of long lists": {
			types.StrategicMergePatchType, `{"metadata":{"ownerReferences":[` + owners + `]}}`,
			http.StatusRequestEntityTooLarge, "the lists in the strategic merge patch are too long",
		},
		"strategic merge patch with a directive of the wrong type": {
			types.StrategicMergePatchType, `{"spec":{"strategy":{"$retainKeys":"type"}}}`, http.StatusBadRequest,
			"invalid patch format of retainKeys",
		},
		"strategic merge patch that contradicts its directive": {
			types.StrategicMergePatchType, `{"spec":{"strategy":{"$retainKeys":["type"],"rollingUpdate":{"maxSurge":1}}}}`,
			http.StatusBadRequest, "invalid patch format of retainKeys",
		},
		"apply with too many fields": {
			types.ApplyYAMLPatchType, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","labels":{` +
				entries(`"l%d":""`, 40_001) + `}}}`, http.StatusRequestEntityTooLarge, "have more than",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			target := deployments(t, "")
			patch := change.Patch{Type: test.patch, Data: []byte(test.data), Manager: "m", Validation: resource.Ignore}
			_, err := patch.Apply(t.Context(), target, newTrackedDeployment(t, target))
			status, ok := errors.AsType[*apierrors.StatusError](err)
			if !ok || int(status.ErrStatus.Code) != test.code || !strings.Contains(err.Error(), test.err) {
				t.Errorf("got %.200v (%T), want the code %d and %q", err, err, test.code, test.err)
			}
		})
	}
}

// TestTrackWithoutManagers makes the writes whose managers are not recorded.
func TestTrackWithoutManagers(t *testing.T) {
	t.Parallel()
	target := deployments(t, "")
	object := newTrackedDeployment(t, target)
	before := object.DeepCopy().ManagedFields
	object.Labels = map[string]string{"c": "d"}

	untracked, failing := target, target
	endpoint := *target.Endpoint
	endpoint.FieldManager = nil
	untracked.Endpoint = &endpoint
	if err := change.Track(untracked, nil, object, "m"); err != nil ||
		!change.SameManagers(object.ManagedFields, before) {
		t.Errorf("an endpoint without managed fields: %v, %v", object.ManagedFields, err)
	}
	broken := *target.Endpoint
	broken.FieldManager = func() (*managedfields.FieldManager, error) { return nil, errors.New("no schema") }
	failing.Endpoint = &broken
	if err := change.Track(failing, nil, object, "m"); !apierrors.IsInternalError(err) {
		t.Errorf("a field manager that cannot be built: %v", err)
	}
	apply := change.Patch{Type: types.ApplyYAMLPatchType, Manager: "m", Data: []byte(manifest)}
	if _, err := apply.Apply(t.Context(), failing, object); !apierrors.IsInternalError(err) {
		t.Errorf("apply: %v", err)
	}

	large := object.DeepCopy()
	for i := range 40_001 {
		metav1.SetMetaDataLabel(&large.ObjectMeta, fmt.Sprint("l", i), "")
	}
	if err := change.Track(target, object, large, "m"); err != nil || len(large.ManagedFields) > 0 {
		t.Errorf("a large object has %d managers, %v", len(large.ManagedFields), err)
	}
}

// TestInvalidEmbeddedJSON: JSON that is embedded in a protobuf body may be invalid, which is an error of the client.
func TestInvalidEmbeddedJSON(t *testing.T) {
	t.Parallel()
	target := builtInTarget(t, "controllerrevisions", "")
	revision := &apps.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Data: runtime.RawExtension{Raw: []byte("{")},
	}
	if err := change.Track(target, nil, revision, "m"); !apierrors.IsBadRequest(err) {
		t.Errorf("got %v", err)
	}
}

// TestCheckName compares an object with the path of its request.
func TestCheckName(t *testing.T) {
	t.Parallel()
	target := deployments(t, "")
	for want, object := range map[string]metav1.ObjectMeta{
		"":                                {Name: "web", Namespace: "n"},
		"was undeterminable":              {Namespace: "n"},
		"the name of the object (other)":  {Name: "other", Namespace: "n"},
		"the namespace of the object (x)": {Name: "web", Namespace: "x"},
	} {
		err := change.CheckName(&object, target)
		if err == nil && want == "" {
			continue
		}
		if !apierrors.IsBadRequest(err) || want == "" || !strings.Contains(err.Error(), want) {
			t.Errorf("%s/%s: got %v, want %q", object.Namespace, object.Name, err, want)
		}
	}
	target.Namespace = "" // of a cluster-scoped resource
	if err := change.CheckName(&metav1.ObjectMeta{Name: "web", Namespace: "x"}, target); err != nil {
		t.Errorf("without a namespace in the path: %v", err)
	}
}

// TestDifferentOwnersStay: owner references that differ in any field are not duplicates.
func TestDifferentOwnersStay(t *testing.T) {
	t.Parallel()
	yes, no := true, false
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "1"}
	controller, other, blocking := owner, owner, owner
	controller.Controller, other.Controller, blocking.BlockOwnerDeletion = &yes, &no, &yes
	object := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{
		OwnerReferences: []metav1.OwnerReference{owner, controller, other, blocking},
	}}
	var sent warnings
	change.RemoveDuplicateOwners(warning.WithWarningRecorder(t.Context(), &sent), object)
	if len(object.OwnerReferences) != 4 || len(sent) > 0 {
		t.Errorf("got %v and the warnings %q", object.OwnerReferences, sent)
	}
}

// initialScale is a view that does not exist until it is written for the first time.
type initialScale struct {
	resource.View
	fails error
}

func (initialScale) Get(runtime.Object) (runtime.Object, error) {
	return nil, errors.New("no replicas")
}

func (v initialScale) Before(runtime.Object) (runtime.Object, error) {
	return &autoscaling.Scale{}, v.fails
}

func (initialScale) Validate(context.Context, runtime.Object, runtime.Object) error { return nil }

func (v initialScale) Set(runtime.Object, runtime.Object) error { return v.fails }

// TestInitialView: a change of a view that does not exist yet starts from an initial one. Such a view need not have
// managed fields.
func TestInitialView(t *testing.T) {
	t.Parallel()
	target := deployments(t, "scale")
	endpoint := *target.Endpoint
	endpoint.View = initialScale{}
	target.Endpoint = &endpoint
	stored := newTrackedDeployment(t, deployments(t, ""))
	view, err := change.NewView(target, stored)
	if err != nil {
		t.Fatal(err)
	}
	if err := view.Write(t.Context(), view.Before); err != nil {
		t.Fatal(err)
	}
	if !change.SameManagers(view.Object.(*apps.Deployment).ManagedFields, stored.ManagedFields) {
		t.Error("the managers of the object have changed")
	}
	fails := errors.New("not an int64")
	endpoint.View = initialScale{fails: fails}
	if _, err := change.NewView(target, stored); !errors.Is(err, fails) {
		t.Errorf("got %v, want %v", err, fails)
	}
}

// TestViewHasTheRevisionOfTheBody: an update of a view with a resourceVersion is checked like an update of the object
// with that resourceVersion.
func TestViewHasTheRevisionOfTheBody(t *testing.T) {
	t.Parallel()
	target := deployments(t, "scale")
	endpoint := *target.Endpoint
	endpoint.View = initialScale{}
	target.Endpoint = &endpoint
	stored := newTrackedDeployment(t, deployments(t, ""))
	stored.ResourceVersion = "5"
	for sent, want := range map[string]string{"7": "7", "": "5"} {
		view, err := change.NewView(target, stored)
		if err != nil {
			t.Fatal(err)
		}
		scale := &autoscaling.Scale{ObjectMeta: metav1.ObjectMeta{ResourceVersion: sent}}
		if err := view.Write(t.Context(), scale); err != nil {
			t.Fatal(err)
		}
		if got := view.Object.(*apps.Deployment).ResourceVersion; got != want {
			t.Errorf("sent %q: got the resourceVersion %q, want %q", sent, got, want)
		}
	}
}
