package crd

import (
	"context"
	"fmt"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	"k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/resource"
)

// scaleView shows a custom resource as an autoscaling/v1 Scale. It mirrors scaleFromCustomResource and
// scaleUpdatedObjectInfo of apiextensions-apiserver's ScaleREST.
type scaleView struct {
	version *version
	// mappings has the path of spec.replicas in each version, nil for a version without scale: managed fields of the
	// parent may be recorded in any version.
	mappings managedfields.ResourcePathMappings
}

var (
	_ resource.View       = (*scaleView)(nil)
	_ resource.ScaledKind = (*scaleView)(nil)
	_ resource.Initial    = (*scaleView)(nil)
)

// newScaleView returns the view of a version that has a scale subresource.
func newScaleView(v *version) *scaleView {
	mappings := managedfields.ResourcePathMappings{}
	for _, other := range v.of.versions {
		var path fieldpath.Path
		if other.scale != nil {
			for _, name := range split(other.scale.SpecReplicasPath) {
				path = append(path, fieldpath.PathElement{FieldName: &name})
			}
		}
		mappings[other.kind.GroupVersion().String()] = path
	}
	return &scaleView{version: v, mappings: mappings}
}

// Get implements resource.View. An object without replicas has no Scale, so that an autoscaler does not treat it as
// scaled to zero.
func (s *scaleView) Get(parent runtime.Object) (runtime.Object, error) {
	scale, found, err := s.scale(parent)
	if err != nil {
		return nil, err
	}
	if !found {
		return nil, errors.NewInternalError(fmt.Errorf("the spec replicas field %q does not exist",
			s.version.scale.SpecReplicasPath))
	}
	return scale, nil
}

// Before implements resource.Initial: an update or patch of an object without replicas starts from 0, and sets them.
func (s *scaleView) Before(parent runtime.Object) (runtime.Object, error) {
	scale, _, err := s.scale(parent)
	if err != nil {
		return nil, err
	}
	return scale, nil
}

// scale returns the view and reports whether the object has replicas.
func (s *scaleView) scale(parent runtime.Object) (scale *autoscalingv1.Scale, found bool, err error) {
	object, ok := parent.(*unstructured.Unstructured)
	if !ok {
		return nil, false, fmt.Errorf("%T is not a custom resource", parent)
	}
	spec := s.version.scale
	replicas, found, err := unstructured.NestedInt64(object.Object, split(spec.SpecReplicasPath)...)
	if err != nil {
		return nil, false, errors.NewInternalError(err)
	}
	current, _, err := unstructured.NestedInt64(object.Object, split(spec.StatusReplicasPath)...)
	if err != nil {
		return nil, false, errors.NewInternalError(err)
	}
	selector := ""
	if spec.LabelSelectorPath != nil {
		if selector, _, err = unstructured.NestedString(object.Object, split(*spec.LabelSelectorPath)...); err != nil {
			return nil, false, errors.NewInternalError(err)
		}
	}
	return &autoscalingv1.Scale{
		TypeMeta: metav1.TypeMeta{APIVersion: ScaleKind.GroupVersion().String(), Kind: ScaleKind.Kind},
		ObjectMeta: metav1.ObjectMeta{
			Name: object.GetName(), Namespace: object.GetNamespace(), UID: object.GetUID(),
			ResourceVersion: object.GetResourceVersion(), CreationTimestamp: object.GetCreationTimestamp(),
		},
		Spec:   autoscalingv1.ScaleSpec{Replicas: int32(replicas)},
		Status: autoscalingv1.ScaleStatus{Replicas: int32(current), Selector: selector},
	}, found, nil
}

// Set writes the replicas into the parent.
func (s *scaleView) Set(parent, view runtime.Object) error {
	object, ok := parent.(*unstructured.Unstructured)
	if !ok {
		return fmt.Errorf("%T is not a custom resource", parent)
	}
	scale, ok := view.(*autoscalingv1.Scale)
	if !ok {
		return errors.NewBadRequest(fmt.Sprintf("wrong object passed to Scale update: %v", view))
	}
	if err := unstructured.SetNestedField(
		object.Object, int64(scale.Spec.Replicas), split(s.version.scale.SpecReplicasPath)...,
	); err != nil {
		return errors.NewBadRequest(err.Error())
	}
	return nil
}

// ReplicasPaths implements resource.ScaledKind.
func (s *scaleView) ReplicasPaths() managedfields.ResourcePathMappings { return s.mappings }

// Validate implements resource.View. It leaves the replicas to the strategy of the custom resource, which validates the
// object with the new replicas (validateScaleSpec).
func (s *scaleView) Validate(_ context.Context, view, _ runtime.Object) error {
	if _, ok := view.(*autoscalingv1.Scale); !ok {
		return errors.NewBadRequest(fmt.Sprintf("wrong object passed to Scale update: %v", view))
	}
	return nil
}

// newScaleBody returns the codec of scale bodies.
func newScaleBody() (resource.Codec, error) {
	scheme := runtime.NewScheme()
	if err := autoscalingv1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register autoscaling/v1: %w", err)
	}
	version := autoscalingv1.SchemeGroupVersion
	return codec.NewScheme(scheme, serializer.NewCodecFactory(scheme), ScaleKind, version, version), nil
}
