package core

import (
	"context"
	"errors"
	"fmt"
	"maps"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/registry/rest"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/features"
	"k8s.io/kubernetes/pkg/registry/core/pod"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

var pods = schema.GroupResource{Resource: "pods"}

func bindingSubresource(objects resource.Client) definition.Subresource {
	subresource := definition.Action("binding", bindingKind, binder{objects}.bind).WithMetadata()
	subresource.Update = assignment{pod.Strategy}
	return subresource
}

// assignment is the update strategy of bindings. It omits the validation of pod updates, because this validation
// forbids changes of spec.nodeName.
type assignment struct{ rest.RESTUpdateStrategy }

func (assignment) PrepareForUpdate(context.Context, runtime.Object, runtime.Object) {}

func (assignment) ValidateUpdate(context.Context, runtime.Object, runtime.Object) field.ErrorList {
	return nil
}

func (assignment) WarningsOnUpdate(context.Context, runtime.Object, runtime.Object) []string {
	return nil
}

// binder binds the pods of a client.
type binder struct{ objects resource.Client }

// bind implements bindings and pods/binding, which assign a pod to a node. The UID and resource version of the binding
// are preconditions.
func (b binder) bind(ctx context.Context, call resource.Call) (runtime.Object, error) {
	binding, ok := call.Body.(*api.Binding)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Binding object: %T", call.Body))
	}
	if call.Name != "" && call.Name != binding.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	if errs := validation.ValidatePodBinding(binding); len(errs) != 0 {
		return nil, errs.ToAggregate()
	}
	if err := call.Validate(ctx); err != nil {
		return nil, err
	}
	if binding.Name == "" {
		return nil, apierrors.NewBadRequest("Name parameter required.")
	}
	key := resource.Key{GroupResource: pods, Subresource: "binding", Namespace: call.Namespace, Name: binding.Name}
	_, err := b.objects.Update(ctx, key, func(current runtime.Object) error {
		return assign(current.(*api.Pod), binding)
	}, resource.WriteOptions{DryRun: call.DryRun})
	if err != nil {
		return nil, asConflict(err, binding.Name)
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// assign applies a binding to a pod, or returns the reason why it cannot be applied.
func assign(pod *api.Pod, binding *api.Binding) error {
	switch {
	case binding.UID != "" && binding.UID != pod.UID:
		return &resource.PreconditionError{What: "UID", Wanted: string(binding.UID), Actual: string(pod.UID)}
	case binding.ResourceVersion != "" && binding.ResourceVersion != pod.ResourceVersion:
		return &resource.PreconditionError{
			What: "ResourceVersion", Wanted: binding.ResourceVersion, Actual: pod.ResourceVersion,
		}
	case pod.DeletionTimestamp != nil:
		return fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.Name)
	case pod.Spec.NodeName != "":
		return fmt.Errorf("pod %v is already assigned to node %q", pod.Name, pod.Spec.NodeName)
	case len(pod.Spec.SchedulingGates) != 0:
		return fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.Name)
	}
	pod.Spec.NodeName = binding.Target.Name
	if utilfeature.DefaultFeatureGate.Enabled(features.ClearingNominatedNodeNameAfterBinding) {
		pod.Status.NominatedNodeName = ""
	}
	pod.Annotations = merged(pod.Annotations, binding.Annotations)
	// The strategy of pods drops these annotations of clients, but bindings bypass it.
	podutil.DropInitContainerAnnotations(pod.Annotations)
	if utilfeature.DefaultFeatureGate.Enabled(features.PodTopologyLabelsAdmission) {
		pod.Labels = merged(pod.Labels, binding.Labels)
	}
	podutil.UpdatePodCondition(&pod.Status, &api.PodCondition{Type: api.PodScheduled, Status: api.ConditionTrue})
	return nil
}

func merged(into, from map[string]string) map[string]string {
	if into == nil && len(from) > 0 {
		into = map[string]string{}
	}
	maps.Copy(into, from)
	return into
}

// asConflict converts an error of assign to the conflict that clients of bindings expect. It returns errors with an API
// status unchanged.
func asConflict(err error, name string) error {
	var known apierrors.APIStatus
	if errors.As(err, &known) {
		return err
	}
	return apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, name, err)
}
