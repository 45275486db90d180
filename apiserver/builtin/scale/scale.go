// Package scale implements the scale subresource of workload kinds.
package scale

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/registry/rest"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	_ "k8s.io/kubernetes/pkg/apis/autoscaling/install"
	"k8s.io/kubernetes/pkg/apis/autoscaling/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/request"
)

// Kind is the kind of the scale subresource.
var Kind = schema.GroupVersionKind{Group: autoscaling.GroupName, Version: "v1", Kind: "Scale"}

// Subresource returns the scale subresource of a parent that strategy updates.
func Subresource(strategy rest.RESTUpdateStrategy) definition.Subresource {
	return definition.View("scale", Kind, strategy, View{})
}

// View converts Deployments, ReplicaSets, StatefulSets and ReplicationControllers to Scale. It implements
// resource.View.
type View struct{}

// ReplicasPaths returns the path of the replicas in the parent by the parent's group and version, for
// managedfields.NewScaleHandler.
func (View) ReplicasPaths() managedfields.ResourcePathMappings {
	path := fieldpath.MakePathOrDie("spec", "replicas")
	return managedfields.ResourcePathMappings{"apps/v1": path, "v1": path}
}

// parts has the values of a parent that are part of its Scale.
type parts struct {
	metadata *metav1.ObjectMeta
	desired  int32
	actual   int32
	selector string
}

func partsOf(parent runtime.Object) (parts, error) {
	switch p := parent.(type) {
	case *apps.Deployment:
		return newParts(&p.ObjectMeta, p.Spec.Replicas, p.Status.Replicas, p.Spec.Selector)
	case *apps.ReplicaSet:
		return newParts(&p.ObjectMeta, p.Spec.Replicas, p.Status.Replicas, p.Spec.Selector)
	case *apps.StatefulSet:
		return newParts(&p.ObjectMeta, p.Spec.Replicas, p.Status.Replicas, p.Spec.Selector)
	case *core.ReplicationController:
		selector := labels.SelectorFromSet(p.Spec.Selector).String()
		return parts{&p.ObjectMeta, ptr.Deref(p.Spec.Replicas, 0), p.Status.Replicas, selector}, nil
	}
	return parts{}, fmt.Errorf("a %T has no scale", parent)
}

func newParts(metadata *metav1.ObjectMeta, desired, actual int32, selector *metav1.LabelSelector) (parts, error) {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return parts{}, apierrors.NewBadRequest(err.Error())
	}
	return parts{metadata, desired, actual, parsed.String()}, nil
}

func setReplicas(parent runtime.Object, replicas int32) {
	switch p := parent.(type) {
	case *apps.Deployment:
		p.Spec.Replicas = replicas
	case *apps.ReplicaSet:
		p.Spec.Replicas = replicas
	case *apps.StatefulSet:
		p.Spec.Replicas = replicas
	case *core.ReplicationController:
		p.Spec.Replicas = &replicas
	}
}

// Get implements resource.View.
func (View) Get(parent runtime.Object) (runtime.Object, error) {
	p, err := partsOf(parent)
	if err != nil {
		return nil, err
	}
	return &autoscaling.Scale{
		ObjectMeta: metav1.ObjectMeta{
			Name:              p.metadata.Name,
			Namespace:         p.metadata.Namespace,
			UID:               p.metadata.UID,
			ResourceVersion:   p.metadata.ResourceVersion,
			CreationTimestamp: p.metadata.CreationTimestamp,
		},
		Spec:   autoscaling.ScaleSpec{Replicas: p.desired},
		Status: autoscaling.ScaleStatus{Replicas: p.actual, Selector: p.selector},
	}, nil
}

// Set implements resource.View. The resource version of the Scale becomes the parent's, so that it is a precondition of
// the update.
func (View) Set(parent, view runtime.Object) error {
	scale, ok := view.(*autoscaling.Scale)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("expected input object type to be Scale, but %T", view))
	}
	p, err := partsOf(parent)
	if err != nil {
		return err
	}
	if scale.UID != "" && scale.UID != p.metadata.UID {
		return apierrors.NewConflict(schema.GroupResource{Resource: "scale"}, p.metadata.Name,
			fmt.Errorf("Precondition failed: UID in precondition: %v, UID in object meta: %v", scale.UID, p.metadata.UID))
	}
	setReplicas(parent, scale.Spec.Replicas)
	p.metadata.ResourceVersion = scale.ResourceVersion
	return nil
}

// version returns the version of Scales that declarative validation uses, for a parent in any version.
type version struct{}

// GroupVersionKind implements rest.GroupVersionKindProvider.
func (version) GroupVersionKind(schema.GroupVersion) schema.GroupVersionKind { return Kind }

// Validate implements resource.View.
func (View) Validate(ctx context.Context, view, old runtime.Object) error {
	scale, ok := view.(*autoscaling.Scale)
	if !ok {
		return apierrors.NewBadRequest(fmt.Sprintf("expected input object type to be Scale, but %T", view))
	}
	former, ok := old.(*autoscaling.Scale)
	if !ok {
		return fmt.Errorf("validate an update of a %T to a Scale", old)
	}
	if errs := validation.ValidateScaleUpdate(ctx, scale, former, legacyscheme.Scheme, version{}); len(errs) > 0 {
		return request.Invalid(Kind.GroupKind(), scale.Name, errs)
	}
	return nil
}
