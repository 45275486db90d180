package change_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	cbor "k8s.io/apimachinery/pkg/runtime/serializer/cbor/direct"
	"k8s.io/apimachinery/pkg/types"
	genericrequest "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/apps"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/registry/change"
	"quorate.dev/apiserver/resource"
)

// warnings records the warnings that a client gets.
type warnings []string

func (w *warnings) AddWarning(_, text string) { *w = append(*w, text) }

// deployments returns the target of a deployment or of its subresource.
func deployments(t *testing.T, subresource string) resource.Target {
	t.Helper()
	return builtInTarget(t, "deployments", subresource)
}

// builtInTarget returns the target of an object in apps/v1.
func builtInTarget(t *testing.T, plural, subresource string) resource.Target {
	t.Helper()
	catalog := resource.NewCatalog(builtin.Definitions(builtin.Options{EventTTL: time.Hour})...)
	match, ok := catalog.Lookup("apps", "v1", plural)
	if !ok {
		t.Fatalf("%s are not served", plural)
	}
	return resource.Target{Match: match, Endpoint: match.Version.Endpoints[subresource], Namespace: "n", Name: "web"}
}

const manifest = `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"web","namespace":"n","uid":"u","labels":{"a":"b"}},
"spec":{"replicas":1,"selector":{"matchLabels":{"a":"b"}},"template":{"metadata":{"labels":{"a":"b"}},
"spec":{"containers":[{"name":"main","image":"one"},{"name":"proxy","image":"two"}]}}}}`

// newDeployment returns the object that clients change.
func newDeployment(t *testing.T, target resource.Target) *apps.Deployment {
	t.Helper()
	object, _, _, err := target.Version.Codec.Decode([]byte(manifest), runtime.ContentTypeJSON, resource.Strict)
	if err != nil {
		t.Fatal(err)
	}
	return object.(*apps.Deployment)
}

// newTrackedDeployment returns the object with the manager that has created it.
func newTrackedDeployment(t *testing.T, target resource.Target) *apps.Deployment {
	t.Helper()
	object := newDeployment(t, target)
	if err := change.Track(target, nil, object, "first"); err != nil {
		t.Fatal(err)
	}
	return object
}

// describe returns the fields that the patches of the tests change, as text.
func describe(object runtime.Object) string {
	d := object.(*apps.Deployment)
	var containers []string
	for i := range d.Spec.Template.Spec.Containers {
		containers = append(containers, d.Spec.Template.Spec.Containers[i].Name+"="+d.Spec.Template.Spec.Containers[i].Image)
	}
	return strings.Join(containers, " ") + " labels " + strings.Join(slices.Sorted(labelsOf(d)), ",")
}

func labelsOf(d *apps.Deployment) func(yield func(string) bool) {
	return func(yield func(string) bool) {
		for name, value := range d.Labels {
			if !yield(name + "=" + value) {
				return
			}
		}
	}
}

// inCBOR returns a configuration with one label.
func inCBOR(t *testing.T, apiVersion, label, value string) string {
	t.Helper()
	encoded, err := cbor.Marshal(map[string]any{
		"apiVersion": apiVersion, "kind": "Deployment",
		"metadata": map[string]any{"name": "web", "labels": map[string]any{label: value}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(encoded)
}

// TestPatches applies patches of each type to a deployment.
func TestPatches(t *testing.T) {
	t.Parallel()
	const unchanged = "main=one proxy=two labels a=b"
	for _, test := range []struct {
		name       string
		patch      types.PatchType
		data       string
		validation resource.FieldValidation
		want       string
		warning    string // part of one; empty if there is none
		err        string // part of the message; empty if the patch applies
	}{
		{name: "JSON patch", patch: types.JSONPatchType, want: "main=three proxy=two labels a=b",
			data: `[{"op":"replace","path":"/spec/template/spec/containers/0/image","value":"three"}]`},
		{name: "JSON patch of a missing path", patch: types.JSONPatchType, err: "rejected our request due to an error",
			data: `[{"op":"remove","path":"/metadata/labels/c"}]`},
		{
			name: "JSON patch without a path", patch: types.JSONPatchType, err: "rejected our request due to an error",
			data: `[{"op":"replace","value":1}]`,
		},
		{
			name: "JSON patch that is no list", patch: types.JSONPatchType, validation: resource.Warn, data: `{}`,
			err: "error decoding patch",
		},
		{name: "JSON patch with an unknown member", patch: types.JSONPatchType, validation: resource.Warn, want: unchanged,
			data: `[{"op":"test","path":"/kind","value":"Deployment","why":""}]`, warning: `json patch unknown field "[0].why"`},
		{name: "JSON patch with too many operations", patch: types.JSONPatchType, err: "allowed maximum operations",
			data: "[" + strings.Repeat(`{"op":"test","path":"/kind","value":"Deployment"},`, 10_000) +
				`{"op":"test","path":"/kind","value":"x"}]`},
		{name: "merge patch", patch: types.MergePatchType, want: "three=four labels c=d",
			data: `{"metadata":{"labels":{"a":null,"c":"d"}},"spec":{"template":{"spec":{"containers":[{"name":"three","image":"four"}]}}}}`},
		{
			name: "merge patch that is no object", patch: types.MergePatchType, data: `[`,
			err: "error decoding patch", validation: resource.Warn,
		},
		{name: "merge patch with an unknown field", patch: types.MergePatchType, validation: resource.Warn, want: unchanged,
			data: `{"spec":{"replica":3}}`, warning: `unknown field "spec.replica"`},
		{name: "merge patch with an unknown field, strict", patch: types.MergePatchType, validation: resource.Strict,
			data: `{"spec":{"replica":3}}`, err: `unknown field "spec.replica"`},
		{name: "merge patch with an unknown field, ignored", patch: types.MergePatchType, validation: resource.Ignore,
			data: `{"spec":{"replica":3}}`, want: unchanged},
		{
			name: "merge patch of the wrong type", patch: types.MergePatchType,
			data: `{"spec":{"replicas":"x"}}`, err: "cannot unmarshal",
		},
		{name: "strategic merge patch", patch: types.StrategicMergePatchType, want: "main=one proxy=three labels a=b",
			data: `{"spec":{"template":{"spec":{"containers":[{"name":"proxy","image":"three"}]}}}}`},
		{name: "strategic merge patch that deletes", patch: types.StrategicMergePatchType, want: "main=one labels a=b",
			data: `{"spec":{"template":{"spec":{"containers":[{"name":"proxy","$patch":"delete"}]}}}}`},
		{name: "strategic merge patch, malformed", patch: types.StrategicMergePatchType, data: `{`, err: "unexpected end"},
		{name: "strategic merge patch without a merge key", patch: types.StrategicMergePatchType,
			err:  "does not contain declared merge key",
			data: `{"spec":{"template":{"spec":{"containers":[{"image":"three"}]}}}}`},
		{name: "strategic merge patch with an unknown field", patch: types.StrategicMergePatchType, validation: resource.Warn,
			data: `{"spec":{"replica":3}}`, warning: `unknown field "spec.replica"`, want: unchanged},
		{name: "strategic merge patch with an unknown field, strict", patch: types.StrategicMergePatchType,
			validation: resource.Strict, data: `{"spec":{"replica":3}}`, err: `unknown field "spec.replica"`},
		{
			name: "strategic merge patch of the wrong type", patch: types.StrategicMergePatchType,
			data: `{"spec":{"replicas":"x"}}`, err: "unrecognized type: int32",
		},
		{name: "apply", patch: types.ApplyYAMLPatchType, want: "main=one proxy=two labels a=b,c=d",
			data: "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, labels: {c: d}}}"},
		{name: "apply that conflicts", patch: types.ApplyYAMLPatchType, err: "conflict",
			data: "{apiVersion: apps/v1, kind: Deployment, metadata: {name: web, labels: {a: d}}}"},
		{name: "apply that is no YAML", patch: types.ApplyYAMLPatchType, data: "{", err: "error decoding patch"},
		{name: "apply with a field twice", patch: types.ApplyYAMLPatchType, validation: resource.Warn,
			want:    "main=one proxy=two labels a=b,c=d",
			data:    "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, labels: {c: x, c: d}}",
			warning: `key "c" already set in map`},
		{name: "apply with a field twice, strict", patch: types.ApplyYAMLPatchType, validation: resource.Strict,
			err:  "error strict decoding patch",
			data: "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: web, labels: {c: x, c: d}}"},
		{name: "apply in CBOR", patch: types.ApplyCBORPatchType, want: "main=one proxy=two labels a=b,c=d",
			validation: resource.Strict, data: inCBOR(t, "apps/v1", "c", "d")},
		{name: "apply in CBOR that conflicts", patch: types.ApplyCBORPatchType, err: "conflict",
			data: inCBOR(t, "apps/v1", "a", "d")},
		{name: "apply that is no CBOR", patch: types.ApplyCBORPatchType, data: "{}", err: "error decoding patch"},
		{name: "apply in CBOR with a field twice", patch: types.ApplyCBORPatchType, err: "error decoding patch",
			data: "\xa2\x44kind\x41a\x44kind\x41a"},
		{
			name: "another name", patch: types.MergePatchType, data: `{"metadata":{"name":"x"}}`,
			err: "does not match the name on the URL",
		},
		{name: "no name", patch: types.MergePatchType, data: `{"metadata":{"name":null}}`, err: "was undeterminable"},
		{
			name: "another namespace", patch: types.MergePatchType, data: `{"metadata":{"namespace":"x"}}`,
			err: "does not match the namespace",
		},
		{name: "unknown type", patch: "application/json", data: `{}`, err: "unimplemented patch type"},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			target := deployments(t, "")
			current := newTrackedDeployment(t, target)
			before := current.DeepCopy()
			var sent warnings
			patch := change.Patch{Type: test.patch, Data: []byte(test.data), Manager: "second", Validation: test.validation}
			if patch.Validation == "" {
				patch.Validation = resource.Ignore
			}
			object, err := patch.Apply(warning.WithWarningRecorder(t.Context(), &sent), target, current)
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Fatalf("got the error %v, want %q", err, test.err)
			}
			if err == nil && describe(object) != test.want {
				t.Errorf("got %s, want %s", describe(object), test.want)
			}
			if got := strings.Join(sent, "; "); (got == "") != (test.warning == "") || !strings.Contains(got, test.warning) {
				t.Errorf("got the warnings %q, want %q", got, test.warning)
			}
			if describe(current) != describe(before) {
				t.Error("the patch changed the stored object")
			}
		})
	}
}

// TestChangesOfAMissingObject changes an object that does not exist: only server-side apply creates it.
func TestChangesOfAMissingObject(t *testing.T) {
	t.Parallel()
	target := deployments(t, "")
	edit := change.Edit(func(runtime.Object) error { return nil })
	for name, c := range map[string]change.Change{
		"edit": edit, "merge patch": change.Patch{Type: types.MergePatchType, Data: []byte(`{}`)},
	} {
		if _, err := c.Apply(t.Context(), target, nil); !apierrors.IsNotFound(err) || c.CreatesMissing() || c.UID() != "" {
			t.Errorf("%s: %v", name, err)
		}
	}
	apply := change.Patch{Type: types.ApplyYAMLPatchType, Manager: "m", Data: []byte(manifest)}
	created, err := apply.Apply(t.Context(), target, nil)
	if err != nil || describe(created) != "main=one proxy=two labels a=b" ||
		len(created.(*apps.Deployment).ManagedFields) != 1 || !apply.CreatesMissing() {
		t.Errorf("apply: %v, %v", created, err)
	}
}

// TestReplacementAndEdit replaces an object, and edits it as the server's own code does.
func TestReplacementAndEdit(t *testing.T) {
	t.Parallel()
	target := deployments(t, "")
	stored := newTrackedDeployment(t, target)
	object := stored.DeepCopy()
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "1"}
	object.OwnerReferences = []metav1.OwnerReference{owner, {APIVersion: "v1", Kind: "Pod", Name: "p", UID: "2"}, owner}
	var sent warnings
	replacement := change.Replacement{Object: object, Manager: "m"}
	result, err := replacement.Apply(warning.WithWarningRecorder(t.Context(), &sent), target, stored)
	if err != nil || len(result.(*apps.Deployment).OwnerReferences) != 2 ||
		len(object.OwnerReferences) != 3 || replacement.UID() != "u" {
		t.Errorf("got %+v, %v", result, err)
	}
	if len(sent) != 1 || !strings.Contains(sent[0], "duplicate UID(s) observed: 1") {
		t.Errorf("got the warnings %q", sent)
	}
	result.(*apps.Deployment).OwnerReferences = append(result.(*apps.Deployment).OwnerReferences, owner)
	change.RemoveDuplicateOwnersAdmitted(warning.WithWarningRecorder(t.Context(), &sent), result)
	if len(sent) != 2 || !strings.Contains(sent[1], "after mutating admission") {
		t.Errorf("got the warnings %q", sent)
	}
	ctx := resource.WithManager(t.Context(), "controller")
	edited, err := change.Edit(func(o runtime.Object) error {
		o.(*apps.Deployment).Labels["c"] = "d"
		return nil
	}).Apply(ctx, target, result)
	managed := edited.(*apps.Deployment).ManagedFields
	if err != nil ||
		!slices.ContainsFunc(managed, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == "controller" }) {
		t.Errorf("got the managers %+v, %v", managed, err)
	}
	if change.SameManagers(managed, result.(*apps.Deployment).ManagedFields) || !change.SameManagers(managed, managed) {
		t.Error("managers are compared wrongly")
	}
	_, err = change.Edit(func(runtime.Object) error { return context.Canceled }).Apply(ctx, target, result)
	editError, ok := errors.AsType[*change.EditError](err)
	if !ok || !errors.Is(editError, context.Canceled) || err.Error() != context.Canceled.Error() {
		t.Errorf("got the error %v", err)
	}
}

// TestViewOfScale scales a deployment: the manager of the Scale becomes the manager of the deployment's replicas.
func TestViewOfScale(t *testing.T) {
	t.Parallel()
	target := deployments(t, "scale")
	stored := newTrackedDeployment(t, deployments(t, ""))
	ctx := genericrequest.WithRequestInfo(t.Context(), &genericrequest.RequestInfo{
		APIGroup: "apps", APIVersion: "v1", Resource: "deployments", Subresource: "scale",
	})
	view, err := change.NewView(target, stored)
	if err != nil {
		t.Fatal(err)
	}
	patch := change.Patch{
		Type: types.MergePatchType, Data: []byte(`{"spec":{"replicas":5}}`), Manager: "scaler", Validation: resource.Strict,
	}
	after, err := patch.Apply(t.Context(), target, view.Before)
	if err != nil {
		t.Fatal(err)
	}
	if err := view.Write(ctx, after); err != nil {
		t.Fatal(err)
	}
	scaled := view.Object.(*apps.Deployment)
	if scaled.Spec.Replicas != 5 || stored.Spec.Replicas != 1 {
		t.Errorf("got %d replicas, stored are %d", scaled.Spec.Replicas, stored.Spec.Replicas)
	}
	if !slices.ContainsFunc(
		scaled.ManagedFields, func(e metav1.ManagedFieldsEntry) bool {
			return e.Manager == "scaler" && e.APIVersion == "apps/v1"
		},
	) {
		t.Errorf("got the managers %+v", scaled.ManagedFields)
	}
	patch.Data = []byte(`{"spec":{"replicas":-1}}`)
	if after, err = patch.Apply(t.Context(), target, view.Before); err == nil {
		err = view.Write(ctx, after)
	}
	if !apierrors.IsInvalid(err) {
		t.Errorf("negative replicas: %v", err)
	}
}
