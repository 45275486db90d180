package crd_test

import (
	"strings"
	"testing"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/crd"
)

func widgetKind(version string) schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "example.com", Version: version, Kind: "Widget"}
}

// TestSchemeKnowsCustomResourceAndScale checks that admission can create and recognize both kinds that are written
// through the endpoints of a custom resource, and no others.
func TestSchemeKnowsCustomResourceAndScale(t *testing.T) {
	t.Parallel()
	scheme := define(t, sample(t)).Scheme
	for _, kind := range []schema.GroupVersionKind{widgetKind("v1"), widgetKind("v1beta1"), crd.ScaleKind} {
		object, err := scheme.New(kind)
		if err != nil {
			t.Fatal(err)
		}
		if kind == crd.ScaleKind {
			if _, ok := object.(*autoscalingv1.Scale); !ok {
				t.Errorf("new Scale is a %T", object)
			}
		}
		kinds, unversioned, err := scheme.ObjectKinds(object)
		if err != nil || unversioned || len(kinds) != 1 || kinds[0] != kind {
			t.Errorf("kinds of a new %s: %v, unversioned is %t, %v", kind, kinds, unversioned, err)
		}
		if !scheme.Recognizes(kind) {
			t.Errorf("%s is not recognized", kind)
		}
	}
	for _, kind := range []schema.GroupVersionKind{
		widgetKind("v2"), {Group: "example.com", Version: "v1", Kind: "Gadget"},
		{Group: "example.org", Version: "v1", Kind: "Widget"}, {Version: "v1", Kind: "Pod"},
	} {
		if scheme.Recognizes(kind) {
			t.Errorf("%s is recognized", kind)
		}
	}
	if _, _, err := scheme.ObjectKinds(&corev1.Pod{}); err == nil {
		t.Error("a Pod has a kind of the custom resource")
	}
}

// TestSchemeConverts has the conversions that admission and field managers make, and kube-apiserver's errors for
// versions that the definition does not have.
func TestSchemeConverts(t *testing.T) {
	t.Parallel()
	scheme := define(t, sample(t)).Scheme
	empty := func(kind schema.GroupVersionKind) runtime.Object {
		object := &unstructured.Unstructured{}
		object.SetGroupVersionKind(kind)
		return object
	}
	foreign := newWidget("w")
	foreign.SetAPIVersion("example.com/v9")
	for _, test := range []struct {
		name    string
		in, out runtime.Object
		want    string // part of the error; empty: in is converted
	}{
		{"to another version", newWidget("w"), empty(widgetKind("v1beta1")), ""},
		{"to the same version", newWidget("w"), empty(widgetKind("v1")), ""},
		{"a scale", &autoscalingv1.Scale{Spec: autoscalingv1.ScaleSpec{Replicas: 4}}, &autoscalingv1.Scale{}, ""},
		{"to an unknown version", newWidget("w"), empty(widgetKind("v9")),
			"request to convert CR to an invalid group/version: example.com/v9"},
		{"from an unknown version", foreign, empty(widgetKind("v1")),
			"request to convert CR from an invalid group/version: example.com/v9"},
		{"another type", &corev1.Pod{}, empty(widgetKind("v1")), "cannot convert *v1.Pod as a custom resource"},
		{"to another type", newWidget("w"), &corev1.Pod{}, "cannot convert a custom resource to *v1.Pod"},
		{"a scale to another type", &autoscalingv1.Scale{}, &corev1.Pod{}, "cannot convert a scale to *v1.Pod"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := test.in.DeepCopyObject()
			err := scheme.Convert(test.in, test.out, nil)
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want %s", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if before.GetObjectKind().GroupVersionKind() != test.in.GetObjectKind().GroupVersionKind() {
				t.Error("the conversion has changed its input")
			}
			switch out := test.out.(type) {
			case *autoscalingv1.Scale:
				if out.Spec.Replicas != 4 {
					t.Errorf("scale %v", out)
				}
			case *unstructured.Unstructured:
				if out.GetName() != "w" || specOf(t, out) != `{"color":"green","replicas":2}` {
					t.Errorf("converted %v", out.Object)
				}
			}
		})
	}
}

// TestConvertToVersion has the conversions of managed fields, which name a group and version and no object.
func TestConvertToVersion(t *testing.T) {
	t.Parallel()
	scheme := define(t, sample(t)).Scheme
	for _, test := range []struct {
		in      runtime.Object
		version schema.GroupVersion
		want    string // apiVersion and kind of the result, or the error
	}{
		{newWidget("w"), widgetKind("v1beta1").GroupVersion(), "example.com/v1beta1, Kind=Widget"},
		{&autoscalingv1.Scale{}, widgetKind("v1").GroupVersion(), "autoscaling/v1, Kind=Scale"},
		{newWidget("w"), widgetKind("v9").GroupVersion(),
			"request to convert CR to an invalid group/version: example.com/v9"},
		{newWidget("w"), schema.GroupVersion{Group: "example.org", Version: "v1"},
			`example.com/v1, Kind=Widget is unstructured and is not suitable for converting to "example.org/v1"`},
		{&corev1.Pod{}, widgetKind("v1").GroupVersion(), "cannot convert *v1.Pod as a custom resource"},
	} {
		converted, err := scheme.ConvertToVersion(test.in, test.version)
		var got string
		if err != nil {
			got = err.Error()
		} else {
			got = converted.GetObjectKind().GroupVersionKind().String()
		}
		if got != test.want {
			t.Errorf("%T to %s: got %s, want %s", test.in, test.version, got, test.want)
		}
	}
}
