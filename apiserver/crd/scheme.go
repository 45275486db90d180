package crd

import (
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/resource"
)

var _ resource.Scheme = objectScheme{}

// objectScheme is the resource.Scheme of a custom resource and its Scale. Admission uses it to create, default and
// convert objects; with it, upstream's webhook dispatcher works on custom resources as on the types of a
// runtime.Scheme.
type objectScheme struct{ *custom }

// New implements runtime.ObjectCreater.
func (s objectScheme) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	if kind == ScaleKind {
		return &autoscalingv1.Scale{}, nil
	}
	return s.custom.New(kind)
}

// Convert implements runtime.ObjectConvertor.
func (s objectScheme) Convert(in, out, context any) error {
	scale, ok := in.(*autoscalingv1.Scale)
	if !ok {
		return s.custom.Convert(in, out, context)
	}
	target, ok := out.(*autoscalingv1.Scale)
	if !ok {
		return fmt.Errorf("cannot convert a scale to %T", out)
	}
	scale.DeepCopyInto(target)
	return nil
}

// ObjectKinds implements runtime.ObjectTyper.
func (s objectScheme) ObjectKinds(object runtime.Object) ([]schema.GroupVersionKind, bool, error) {
	switch object := object.(type) {
	case *autoscalingv1.Scale:
		return []schema.GroupVersionKind{ScaleKind}, false, nil
	case *unstructured.Unstructured:
		return []schema.GroupVersionKind{object.GroupVersionKind()}, false, nil
	}
	return nil, false, fmt.Errorf("%T is not a custom resource", object)
}

// Recognizes implements runtime.ObjectTyper.
func (s objectScheme) Recognizes(kind schema.GroupVersionKind) bool {
	return kind == ScaleKind || kind.Group == s.group && kind.Kind == s.kind && s.versions[kind.Version] != nil
}
