package core

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podutil "k8s.io/kubernetes/pkg/api/pod"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/policy"
	podstrategy "k8s.io/kubernetes/pkg/registry/core/pod"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/builtin/definition"
	"quorate.dev/apiserver/resource"
)

var (
	evictionKind = schema.GroupVersionKind{Group: "policy", Version: "v1", Kind: "Eviction"}
	budgets      = schema.GroupResource{Group: "policy", Resource: "poddisruptionbudgets"}
	// These resources are in the errors of kube-apiserver.
	refusingBudget = schema.GroupResource{Group: "policy", Resource: "poddisruptionbudget"}
	changedPod     = schema.GroupResource{Resource: "Pod"}
)

const (
	// maxDisruptedPods bounds the number of granted evictions that the disruption controller has not observed.
	maxDisruptedPods = 2000
	// evictionAttempts is the maximum number of attempts while the pod changes during an eviction.
	evictionAttempts = 20
)

// evictor deletes pods if their PodDisruptionBudgets allow it.
type evictor struct {
	objects resource.Client
	clock   clock.PassiveClock
}

// evict implements pods/eviction.
func (e evictor) evict(ctx context.Context, call resource.Call) (runtime.Object, error) {
	eviction, ok := call.Body.(*policy.Eviction)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a Eviction object: %T", call.Body))
	}
	if call.Name != eviction.Name {
		return nil, apierrors.NewBadRequest("name in URL does not match name in Eviction object")
	}
	options, err := deleteOptions(eviction, call.Options)
	if err != nil {
		return nil, err
	}
	if err := call.Validate(ctx); err != nil {
		return nil, err
	}
	if err := e.remove(ctx, call.Namespace, call.Name, options); err != nil {
		return nil, err
	}
	return &metav1.Status{Status: metav1.StatusSuccess}, nil
}

// remove deletes a pod. If the deletion needs no disruption budget, remove deletes the pod immediately, and retries if
// the pod has changed during the deletion. Otherwise it calls removeWithinBudget.
func (e evictor) remove(ctx context.Context, namespace, name string, options *metav1.DeleteOptions) error {
	for attempt := 1; ; attempt++ {
		object, err := e.objects.Get(ctx,
			resource.Key{GroupResource: pods, Namespace: namespace, Name: name}, resource.ReadOptions{})
		if err != nil {
			return err
		}
		pod := object.(*api.Pod)
		if !canIgnorePDB(pod) {
			return e.removeWithinBudget(ctx, pod, options)
		}
		clientChose := resourceVersionOf(options) != nil
		deletion := options
		if mayBecomeReady := pod.Status.Phase == api.PodPending &&
			pod.DeletionTimestamp.IsZero(); mayBecomeReady && !clientChose {
			deletion = withResourceVersion(options, pod)
		}
		err = deleteDisrupted(ctx, e.objects, pod, deletion)
		if !apierrors.IsConflict(err) || clientChose || attempt == evictionAttempts {
			return err
		}
	}
}

// deleteOptions returns the delete options of an eviction, with the dry run of the request.
func deleteOptions(eviction *policy.Eviction, request *metav1.CreateOptions) (*metav1.DeleteOptions, error) {
	var dryRun []string
	if request != nil {
		dryRun = request.DryRun
	}
	options := eviction.DeleteOptions
	if options == nil {
		return &metav1.DeleteOptions{DryRun: dryRun}, nil
	}
	if ptr.Deref(options.IgnoreStoreReadErrorWithClusterBreakingPotential, false) {
		path := field.NewPath("deleteOptions", "ignoreStoreReadErrorWithClusterBreakingPotential")
		return nil, apierrors.NewInvalid(evictionKind.GroupKind(), eviction.Name, field.ErrorList{
			field.Invalid(path, true, "can not be set for pod eviction, try after removing the option"),
		})
	}
	switch {
	case len(options.DryRun) == 0:
		options.DryRun = dryRun
	case len(dryRun) != 0 && !reflect.DeepEqual(dryRun, options.DryRun):
		// kube-apiserver responds with this text.
		return nil, fmt.Errorf("Non-matching dry-run options in request and content: %v and %v", dryRun, options.DryRun)
	}
	return options, nil
}

// removeWithinBudget deletes a pod that needs a budget if its PodDisruptionBudget allows the eviction.
func (e evictor) removeWithinBudget(ctx context.Context, pod *api.Pod, options *metav1.DeleteOptions) error {
	budget, err := budgetOf(ctx, e.objects, pod)
	if err != nil {
		return err
	}
	if budget == nil {
		return deleteDisrupted(ctx, e.objects, pod, options)
	}
	if canEvictUnhealthy(budget, pod) {
		err := deleteDisrupted(ctx, e.objects, pod, withResourceVersion(options, pod))
		if apierrors.IsConflict(err) && resourceVersionOf(options) == nil {
			return busyBudget(budget.Name)
		}
		return err
	}
	if err := e.decrementBudget(ctx, budget, pod.Name, len(options.DryRun) > 0); err != nil {
		return err
	}
	return deleteDisrupted(ctx, e.objects, pod, options)
}

// canIgnorePDB reports whether a pod can be deleted without regard to budgets, because it is pending, completed or
// terminating.
func canIgnorePDB(pod *api.Pod) bool {
	switch pod.Status.Phase {
	case api.PodSucceeded, api.PodFailed, api.PodPending:
		return true
	}
	return !pod.DeletionTimestamp.IsZero()
}

// canEvictUnhealthy reports whether an unready pod can be evicted without decrementing the budget.
func canEvictUnhealthy(budget *policy.PodDisruptionBudget, pod *api.Pod) bool {
	if podutil.IsPodReady(pod) {
		return false
	}
	if ptr.Deref(budget.Spec.UnhealthyPodEvictionPolicy, "") == policy.AlwaysAllow {
		return true
	}
	return budget.Status.DesiredHealthy > 0 && budget.Status.CurrentHealthy >= budget.Status.DesiredHealthy
}

// budgetOf returns the PodDisruptionBudget that selects a pod, or nil. It does not use the cache, so that a new budget
// protects pods immediately.
func budgetOf(ctx context.Context, objects resource.Client, pod *api.Pod) (*policy.PodDisruptionBudget, error) {
	all, err := objects.List(ctx,
		resource.Key{GroupResource: budgets, Namespace: pod.Namespace}, resource.ReadOptions{})
	if err != nil {
		return nil, err
	}
	var found *policy.PodDisruptionBudget
	for _, object := range all {
		budget := object.(*policy.PodDisruptionBudget)
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if found != nil {
			return nil, &apierrors.StatusError{ErrStatus: metav1.Status{
				Status: metav1.StatusFailure, Code: 500,
				Message: "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.",
			}}
		}
		found = budget
	}
	return found, nil
}

// decrementBudget records one disruption in the status of the stored budget.
func (e evictor) decrementBudget(
	ctx context.Context, budget *policy.PodDisruptionBudget, pod string, dryRun bool,
) error {
	now := metav1.NewTime(e.clock.Now())
	key := resource.Key{GroupResource: budgets, Subresource: "status", Namespace: budget.Namespace, Name: budget.Name}
	_, err := e.objects.Update(ctx, key, func(current runtime.Object) error {
		return checkAndDecrement(current.(*policy.PodDisruptionBudget), pod, now)
	}, resource.WriteOptions{DryRun: dryRun})
	return err
}

// checkAndDecrement records a disruption in a budget, or returns the reason why the budget does not allow it.
func checkAndDecrement(budget *policy.PodDisruptionBudget, pod string, now metav1.Time) error {
	status := &budget.Status
	switch {
	case status.ObservedGeneration < budget.Generation:
		return busyBudget(budget.Name)
	case status.DisruptionsAllowed < 0:
		return refused(budget.Name, "pdb disruptions allowed is negative", "pdb disruptions allowed is negative")
	case len(status.DisruptedPods) > maxDisruptedPods:
		return refused(budget.Name, "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
			"too many pending evictions not confirmed by PDB controller")
	case status.DisruptionsAllowed == 0:
		return exhausted(budget)
	}
	status.DisruptionsAllowed--
	if status.DisruptionsAllowed == 0 {
		meta.SetStatusCondition(&status.Conditions, metav1.Condition{
			Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse,
			Reason: policyv1.InsufficientPodsReason, ObservedGeneration: status.ObservedGeneration,
		})
	}
	if status.DisruptedPods == nil {
		status.DisruptedPods = map[string]metav1.Time{}
	}
	status.DisruptedPods[pod] = now
	return nil
}

// refused returns the error of a budget whose status allows no eviction at all. cause is the end of the error's cause.
func refused(budget, message, cause string) error {
	err := apierrors.NewForbidden(refusingBudget, budget, errors.New(message))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    policyv1.DisruptionBudgetCause,
		Message: fmt.Sprintf("The disruption budget %s does not allow evicting pods currently: %s", budget, cause),
	})
	return err
}

func exhausted(budget *policy.PodDisruptionBudget) error {
	condition := meta.FindStatusCondition(budget.Status.Conditions, policyv1.DisruptionAllowedCondition)
	reported := condition != nil && condition.Status == metav1.ConditionFalse && condition.Message != ""
	message := fmt.Sprintf("The disruption budget %s does not allow evicting pods currently", budget.Name)
	switch {
	case reported && condition.Reason == policyv1.SyncFailedReason:
		message += " because it failed sync: " + condition.Message
	case budget.Status.CurrentHealthy <= budget.Status.DesiredHealthy:
		message = fmt.Sprintf("The disruption budget %s needs %d healthy pods and has %d currently",
			budget.Name, budget.Status.DesiredHealthy, budget.Status.CurrentHealthy)
	case reported:
		message += fmt.Sprintf(" (%s): %s", condition.Reason, condition.Message)
	}
	return tooManyDisruptions(message, 0)
}

func busyBudget(name string) error {
	return tooManyDisruptions(fmt.Sprintf("The disruption budget %s is still being processed by the server.", name), 10)
}

func tooManyDisruptions(cause string, retryAfterSeconds int) error {
	err := apierrors.NewTooManyRequests("Cannot evict pod as it would violate the pod's disruption budget.",
		retryAfterSeconds)
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes,
		metav1.StatusCause{Type: policyv1.DisruptionBudgetCause, Message: cause})
	return err
}

func resourceVersionOf(options *metav1.DeleteOptions) *string {
	if options.Preconditions == nil {
		return nil
	}
	return options.Preconditions.ResourceVersion
}

// withResourceVersion returns options with the pod's resourceVersion as the precondition, which replaces the client's.
func withResourceVersion(options *metav1.DeleteOptions, pod *api.Pod) *metav1.DeleteOptions {
	options = options.DeepCopy()
	if options.Preconditions == nil {
		options.Preconditions = &metav1.Preconditions{}
	}
	options.Preconditions.ResourceVersion = &pod.ResourceVersion
	return options
}

// evictionSubresource describes pods/eviction. An eviction also updates the status of the pod, without a field manager.
func evictionSubresource(objects resource.Client, clock clock.PassiveClock) definition.Subresource {
	subresource := definition.Action("eviction", evictionKind, evictor{objects, clock}.evict)
	subresource.Update = podstrategy.StatusStrategy
	// Clients may send the removed version v1beta1.
	subresource.Accepts = []schema.GroupVersion{{Group: "policy", Version: "v1beta1"}}
	return subresource
}

// deleteDisrupted sets the condition DisruptionTarget of a pod and then deletes the pod.
func deleteDisrupted(ctx context.Context, objects resource.Client, pod *api.Pod, options *metav1.DeleteOptions) error {
	if len(options.DryRun) == 0 {
		key := resource.Key{GroupResource: pods, Subresource: "eviction", Namespace: pod.Namespace, Name: pod.Name}
		marked, err := objects.Update(ctx, key, func(current runtime.Object) error {
			return markDisrupted(current.(*api.Pod), options.Preconditions)
		}, resource.WriteOptions{})
		if err != nil {
			return err
		}
		if resourceVersionOf(options) != nil {
			options = options.DeepCopy()
			options.Preconditions.ResourceVersion = &marked.(*api.Pod).ResourceVersion
		}
	}
	return objects.Delete(ctx, resource.Key{GroupResource: pods, Namespace: pod.Namespace, Name: pod.Name}, options)
}

func markDisrupted(pod *api.Pod, preconditions *metav1.Preconditions) error {
	if preconditions != nil {
		if uid := ptr.Deref(preconditions.UID, ""); uid != "" && uid != pod.UID {
			return apierrors.NewConflict(changedPod, pod.Name, fmt.Errorf("the UID in the precondition (%s) does not match "+
				"the UID in record (%s). The object might have been deleted and then recreated", uid, pod.UID))
		}
		if version := ptr.Deref(preconditions.ResourceVersion, ""); version != "" && version != pod.ResourceVersion {
			return apierrors.NewConflict(changedPod, pod.Name, fmt.Errorf("the ResourceVersion in the precondition (%s) does "+
				"not match the ResourceVersion in record (%s). The object might have been modified", version, pod.ResourceVersion))
		}
	}
	podutil.UpdatePodCondition(&pod.Status, &api.PodCondition{
		Type: api.DisruptionTarget, Status: api.ConditionTrue,
		Reason: "EvictionByEvictionAPI", Message: "Eviction API: evicting",
	})
	return nil
}
