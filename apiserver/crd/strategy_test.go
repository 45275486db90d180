package crd_test

import (
	"encoding/json"
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"quorate.dev/apiserver/resource"
)

// widget makes an object with the given spec.
func widget(spec map[string]any) *unstructured.Unstructured {
	w := newWidget("w")
	w.Object["spec"] = spec
	w.SetResourceVersion("1")
	w.SetUID("u")
	return w
}

func messages(errs field.ErrorList) string {
	var all []string
	for _, err := range errs {
		all = append(all, err.Error())
	}
	return strings.Join(all, "\n")
}

func TestValidate(t *testing.T) {
	for _, test := range []struct {
		name, schema string
		spec         map[string]any
		want         string
	}{
		{"type", `{"type":"object","properties":{"a":{"type":"string"}}}`, map[string]any{"a": int64(1)},
			`spec.a: Invalid value: "integer": spec.a in body must be of type string: "integer"`},
		{
			"required", `{"type":"object","required":["a"],"properties":{"a":{"type":"string"}}}`,
			map[string]any{}, `spec.a: Required value`,
		},
		{
			"enum", `{"type":"object","properties":{"a":{"type":"string","enum":["x"]}}}`, map[string]any{"a": "y"},
			`spec.a: Unsupported value: "y": supported values: "x"`,
		},
		{"set",
			`{"type":"object","properties":{"a":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}}}}`,
			map[string]any{"a": []any{"x", "x"}}, `spec.a[1]: Duplicate value: "x"`},
		{"rule",
			`{"type":"object","properties":{"a":{"type":"integer"}},"x-kubernetes-validations":[{"rule":"self.a < 3","message":"too big"}]}`,
			map[string]any{"a": int64(3)}, `spec: Invalid value: too big`},
		{"rules wait for valid objects",
			`{"type":"object","required":["b"],"properties":{"a":{"type":"integer"},"b":{"type":"string"}},"x-kubernetes-validations":[{"rule":"self.a < 3"}]}`,
			map[string]any{"a": int64(3)}, `some validation rules were not checked because the object was invalid`},
		{"valid", `{"type":"object","properties":{"a":{"type":"string"}}}`, map[string]any{"a": "x"}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			got := messages(withSchema(t, test.schema).Endpoints[""].Create.Validate(t.Context(), widget(test.spec)))
			if test.want == "" && got != "" || !strings.Contains(got, test.want) {
				t.Errorf("got  %s\nwant %s", got, test.want)
			}
		})
	}
}

func TestValidateType(t *testing.T) {
	w := widget(nil)
	delete(w.Object, "spec")
	w.SetKind("Gadget")
	got := messages(withSchema(t, `{"type":"object"}`).Endpoints[""].Create.Validate(t.Context(), w))
	if got != `kind: Invalid value: "Gadget": must be Widget` {
		t.Error(got)
	}
}

func TestRatcheting(t *testing.T) {
	const schema = `{"type":"object","properties":{"a":{"type":"string","maxLength":2},"b":{"type":"integer"},` +
		`"c":{"type":"array","x-kubernetes-list-type":"set","items":{"type":"string"}},` +
		`"d":{"type":"integer","x-kubernetes-validations":[{"rule":"self < 3"}]}}}`
	update := withSchema(t, schema).Endpoints[""].Update
	old := widget(map[string]any{"a": "long", "b": int64(1), "c": []any{"x", "x"}, "d": int64(7)})
	kept := widget(map[string]any{"a": "long", "b": int64(2), "c": []any{"x", "x"}, "d": int64(7)})
	if errs := update.ValidateUpdate(t.Context(), kept, old); len(errs) > 0 {
		t.Errorf("what was wrong and did not change: %v", errs)
	}
	for want, spec := range map[string]map[string]any{
		"spec.a: Too long":      {"a": "longer", "c": []any{"x", "x"}, "d": int64(7)},
		"spec.d: Invalid value": {"a": "long", "c": []any{"x", "x"}, "d": int64(8)},
	} {
		if got := messages(update.ValidateUpdate(t.Context(), widget(spec), old)); !strings.Contains(got, want) ||
			strings.Count(got, "\n") > 1 {
			t.Errorf("no %q in %s", want, got)
		}
	}
}

func TestTransitionRule(t *testing.T) {
	update := withSchema(t,
		`{"type":"object","properties":{"a":{"type":"string","x-kubernetes-validations":[{"rule":"self == oldSelf","message":"fixed"}]}}}`).Endpoints[""].Update
	got := messages(update.ValidateUpdate(t.Context(), widget(map[string]any{"a": "y"}), widget(map[string]any{"a": "x"})))
	if !strings.HasPrefix(got, "spec.a: Invalid value") || !strings.HasSuffix(got, "fixed") {
		t.Error(got)
	}
}

func TestCostBudget(t *testing.T) {
	if testing.Short() {
		t.Skip("takes a minute under the race detector")
	}
	const schema = `{"type":"object","properties":{"a":{"type":"array","items":{"type":"string"}}},` +
		`"x-kubernetes-validations":[{"rule":"self.a.all(x, self.a.all(y, self.a.all(z, x + y + z != 'abc')))"}]}`
	many := make([]any, 600)
	for i := range many {
		many[i] = "x"
	}
	got := messages(withSchema(t, schema).Endpoints[""].Create.Validate(t.Context(), widget(map[string]any{"a": many})))
	if !strings.Contains(got, "actual cost limit exceeded") {
		t.Errorf("no limit: %q", got)
	}
}

func TestGenerationAndStatus(t *testing.T) {
	v := define(t, sample(t)).Version("v1")
	created := newWidget("w")
	created.Object["status"] = map[string]any{"replicas": int64(5)}
	v.Endpoints[""].Create.PrepareForCreate(t.Context(), created)
	if created.GetGeneration() != 1 || created.Object["status"] != nil {
		t.Errorf("created %v", created.Object)
	}

	main := v.Endpoints[""].Update
	relabelled := created.DeepCopy()
	relabelled.SetLabels(map[string]string{"a": "b"})
	relabelled.Object["status"] = map[string]any{"replicas": int64(9)}
	main.PrepareForUpdate(t.Context(), relabelled, created)
	if relabelled.GetGeneration() != 1 || relabelled.Object["status"] != nil {
		t.Errorf("relabelled %v", relabelled.Object)
	}
	scaled := created.DeepCopy()
	scaled.Object["spec"] = map[string]any{"color": "red"}
	main.PrepareForUpdate(t.Context(), scaled, created)
	if scaled.GetGeneration() != 2 {
		t.Errorf("generation %d after the spec changed", scaled.GetGeneration())
	}

	reported := created.DeepCopy()
	reported.Object["spec"] = map[string]any{"color": "red"}
	reported.Object["status"] = map[string]any{"replicas": int64(3)}
	reported.SetLabels(map[string]string{"a": "b"})
	v.Endpoints["status"].Update.PrepareForUpdate(t.Context(), reported, created)
	if got := specOf(t, reported); got != specOf(t, created) || reported.GetLabels() != nil ||
		reported.Object["status"] == nil {
		t.Errorf("reported %v", reported.Object)
	}
}

func TestFinalizerWarnings(t *testing.T) {
	v := withSchema(t, `{"type":"object"}`)
	w := widget(nil)
	w.SetFinalizers([]string{"orphan", "example.com/ok", "plain", "dotted.name"})
	got := v.Endpoints[""].Create.WarningsOnCreate(t.Context(), w)
	if len(got) != 2 ||
		!strings.Contains(got[0], `"dotted.name": prefer a domain-qualified finalizer name including a path`) ||
		!strings.Contains(got[1], `"plain": prefer a domain-qualified`) {
		t.Errorf("warnings %q", got)
	}
	if again := v.Endpoints[""].Update.WarningsOnUpdate(t.Context(), w, w); len(again) > 0 {
		t.Errorf("warnings about what was there: %q", again)
	}
}

func TestScale(t *testing.T) {
	endpoint := define(t, sample(t)).Version("v1").Endpoints["scale"]
	w := newWidget("w")
	w.Object["status"] = map[string]any{"replicas": int64(1), "selector": "a=b"}
	view, err := endpoint.View.Get(w)
	if err != nil {
		t.Fatal(err)
	}
	scale := view.(*autoscalingv1.Scale)
	if scale.Spec.Replicas != 2 || scale.Status.Replicas != 1 || scale.Status.Selector != "a=b" || scale.Name != "w" {
		t.Errorf("scale %v", scale)
	}
	scale.Spec.Replicas = 4
	if err := endpoint.View.Set(w, scale); err != nil {
		t.Fatal(err)
	}
	if got := specOf(t, w); got != `{"color":"green","replicas":4}` {
		t.Errorf("spec %s", got)
	}
	scale.Spec.Replicas = -1
	if err := endpoint.View.Set(w, scale); err != nil {
		t.Fatal(err)
	}
	if got := messages(endpoint.Update.ValidateUpdate(t.Context(), w, newWidget("w"))); !strings.Contains(
		got, ".spec.replicas: Invalid value: -1: should be a non-negative integer",
	) {
		t.Errorf("negative replicas: %s", got)
	}
	unstructured.RemoveNestedField(w.Object, "spec", "replicas")
	if _, err := endpoint.View.Get(w); err == nil ||
		!strings.Contains(err.Error(), `the spec replicas field ".spec.replicas" does not exist`) {
		t.Errorf("without replicas: %v", err)
	}
	body, _, _, err := endpoint.Body.Decode([]byte(`{"apiVersion":"autoscaling/v1","kind":"Scale","spec":{"replicas":3}}`),
		"application/json", resource.Strict)
	if err != nil || body.(*autoscalingv1.Scale).Spec.Replicas != 3 {
		t.Errorf("body %v %v", body, err)
	}
}

// TestScaleOfUnusualObjects reads and writes the Scale of objects whose fields a Scale cannot represent. As with
// kube-apiserver, these reads are internal errors of the server, and these writes are bad requests.
func TestScaleOfUnusualObjects(t *testing.T) {
	t.Parallel()
	view := define(t, sample(t)).Version("v1").Endpoints["scale"].View
	object := func(fields ...any) *unstructured.Unstructured { // a path and a value
		w := newWidget("w")
		if err := unstructured.SetNestedField(w.Object, fields[1], strings.Split(fields[0].(string), ".")...); err != nil {
			t.Fatal(err)
		}
		return w
	}
	for name, parent := range map[string]runtime.Object{
		".spec.replicas accessor error: many is of the type string, expected int64":   object("spec.replicas", "many"),
		".status.replicas accessor error: many is of the type string, expected int64": object("status.replicas", "many"),
		".status.selector accessor error: 1 is of the type int64, expected string":    object("status.selector", int64(1)),
	} {
		if _, err := view.Get(parent); !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("get: got %v, want %s", err, name)
		}
		if _, err := view.(resource.Initial).Before(parent); !apierrors.IsInternalError(err) {
			t.Errorf("before an update: got %v, want %s", err, name)
		}
	}
	if err := view.Set(object("spec", "text"), &autoscalingv1.Scale{}); !apierrors.IsBadRequest(err) {
		t.Errorf("replicas of an object whose spec is a string: %v", err)
	}
	for _, err := range []error{
		view.Validate(t.Context(), newWidget("w"), nil), view.Set(newWidget("w"), newWidget("w")),
	} {
		if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "wrong object passed to Scale update") {
			t.Errorf("another object instead of a Scale: %v", err)
		}
	}
	if err := view.Validate(t.Context(), &autoscalingv1.Scale{}, nil); err != nil {
		t.Errorf("an empty Scale: %v", err)
	}
}

// TestScaleBeforeReplicasAreSet starts an update of an object without replicas from 0, although reading its Scale is an
// error.
func TestScaleBeforeReplicasAreSet(t *testing.T) {
	t.Parallel()
	view := define(t, sample(t)).Version("v1").Endpoints["scale"].View
	w := newWidget("w")
	unstructured.RemoveNestedField(w.Object, "spec", "replicas")
	before, err := view.(resource.Initial).Before(w)
	if err != nil {
		t.Fatal(err)
	}
	if scale := before.(*autoscalingv1.Scale); scale.Spec.Replicas != 0 || scale.Name != "w" {
		t.Errorf("got %v", scale)
	}
	// Managed fields may be recorded in any version, of which v1beta1 has no scale subresource.
	paths := view.(resource.ScaledKind).ReplicasPaths()
	if got := paths["example.com/v1"].String(); got != ".spec.replicas" {
		t.Errorf("path of the replicas in v1: %s", got)
	}
	if path, ok := paths["example.com/v1beta1"]; !ok || path != nil {
		t.Errorf("path of the replicas in v1beta1: %v", path)
	}
}

func TestApplyMergesByKeyAndReportsConflicts(t *testing.T) {
	endpoint := define(t, sample(t)).Version("v1").Endpoints[""]
	manager, err := endpoint.FieldManager()
	if err != nil {
		t.Fatal(err)
	}
	apply := func(who, part, size string) *unstructured.Unstructured {
		w := widget(map[string]any{"parts": []any{map[string]any{"name": part, "size": int64(len(size))}}})
		w.SetResourceVersion("")
		w.SetUID("")
		return w
	}
	empty := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Widget"}}
	first, err := manager.Apply(empty, apply("one", "wheel", "1"), "one", false)
	if err != nil {
		t.Fatal(err)
	}
	second, err := manager.Apply(first, apply("two", "door", "1"), "two", false)
	if err != nil {
		t.Fatal(err)
	}
	parts, _, _ := unstructured.NestedSlice(second.(*unstructured.Unstructured).Object, "spec", "parts")
	if len(parts) != 2 {
		t.Errorf("parts %v", parts)
	}
	if _, err := manager.Apply(second, apply("two", "wheel", "22"), "two", false); err == nil ||
		!strings.Contains(err.Error(), `conflict with "one"`) {
		t.Errorf("no conflict: %v", err)
	}
}

// TestApplyOfNothing has the answers of kube-apiserver 1.36.3's version of structured-merge-diff: a field that is
// emptied by the next configuration, which still names it, becomes null.
func TestApplyOfNothing(t *testing.T) {
	v := withSchema(t, `{"type":"object","nullable":true,"x-kubernetes-preserve-unknown-fields":true}`)
	manager, err := v.Endpoints[""].FieldManager()
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ first, second, want string }{
		{`{"m":{"a":1}}`, `{"m":null}`, `{"m":null}`},
		{`{"m":{"a":1}}`, `{"m":{}}`, `{"m":null}`},
		{`{"m":{"a":1}}`, `null`, `null`},
		{`{"m":{"a":1}}`, `{}`, `null`},
		{`{"m":{"a":{"b":1}}}`, `{"m":{"a":null}}`, `{"m":{"a":null}}`},
		{`{"m":{"a":{"b":1}}}`, `{"m":{"a":{}}}`, `{"m":{"a":null}}`},
		{`{"l":[1]}`, `{"l":null}`, `{"l":null}`},
		{`{"l":[1]}`, `{"l":[]}`, `{"l":[]}`},
	} {
		var live runtime.Object = emptyWidget()
		for _, spec := range []string{test.first, test.second} {
			configuration := emptyWidget()
			var value any
			if err := json.Unmarshal([]byte(spec), &value); err != nil {
				t.Fatal(err)
			}
			configuration.Object["spec"] = value
			if live, err = manager.Apply(live, configuration, "one", false); err != nil {
				t.Fatalf("%s then %s: %v", test.first, test.second, err)
			}
		}
		if got := specOf(t, live); got != test.want {
			t.Errorf("%s then %s: got %s, want %s", test.first, test.second, got, test.want)
		}
	}
}

func emptyWidget() *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget", "metadata": map[string]any{"name": "w"},
	}}
}

func TestScaleIsManaged(t *testing.T) {
	endpoint := define(t, sample(t)).Version("v1").Endpoints["scale"]
	manager, err := endpoint.FieldManager()
	if err != nil {
		t.Fatal(err)
	}
	before := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 1}}
	after := &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 2}}
	updated, err := manager.Update(before, after, "scaler")
	if err != nil {
		t.Fatal(err)
	}
	managers := updated.(*autoscalingv1.Scale).ManagedFields
	if len(managers) != 1 || managers[0].Subresource != "scale" ||
		!strings.Contains(managers[0].FieldsV1.GetRawString(), `"f:replicas"`) {
		t.Errorf("managers %v", managers)
	}
}
