package reconcile

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// finalizer keeps the resource until its objects have been deleted, also where no garbage collector runs.
const finalizer = "quorate.dev/cleanup"

// remove deletes what the cluster owns. It asks nothing of the cluster itself, so it works on a broken one, and it does not
// wait for objects that are already on their way out: a pod of a dead node may take forever.
func (r *Reconciler) remove(ctx context.Context, cluster *v1alpha1.ApiServerCluster) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(cluster, finalizer) {
		return ctrl.Result{}, nil
	}
	left := 0
	var errs []error
	for _, list := range []client.ObjectList{ // pods before the policies that protect them
		&policyv1.PodDisruptionBudgetList{}, &corev1.ServiceList{}, &corev1.PodList{}, &corev1.PersistentVolumeClaimList{},
		&corev1.SecretList{}, &networkingv1.NetworkPolicyList{},
	} {
		n, err := r.removeAll(ctx, cluster, list)
		left += n
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	if left > 0 {
		return ctrl.Result{RequeueAfter: atOnce}, nil
	}
	before := cluster.DeepCopy()
	controllerutil.RemoveFinalizer(cluster, finalizer)
	if err := r.Client.Patch(ctx, cluster, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("removing the finalizer: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("removed")
	return ctrl.Result{}, nil
}

// removeAll deletes the cluster's objects of one kind and returns how many were not yet being deleted.
func (r *Reconciler) removeAll(ctx context.Context, cluster *v1alpha1.ApiServerCluster, list client.ObjectList) (int, error) {
	if err := r.Reader.List(ctx, list, client.InNamespace(cluster.Namespace), client.MatchingLabels(desired.Selector(cluster))); err != nil {
		return 0, fmt.Errorf("listing what to remove: %w", err)
	}
	n := 0
	err := meta.EachListItem(list, func(item runtime.Object) error {
		object, ok := item.(client.Object)
		if !ok || !metav1.IsControlledBy(object, cluster) || object.GetDeletionTimestamp() != nil {
			return nil
		}
		n++
		if err := r.Client.Delete(ctx, object, client.PropagationPolicy(metav1.DeletePropagationBackground)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting %s: %w", object.GetName(), err)
		}
		return nil
	})
	return n, err
}
