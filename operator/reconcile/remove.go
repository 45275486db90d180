package reconcile

import (
	"context"
	"errors"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
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

// finalizer keeps the cluster until its objects are deleted, also in hosting clusters without a garbage collector.
const finalizer = "quorate.dev/cleanup"

// remove deletes the objects that the cluster owns and then the finalizer. It reads nothing from the cluster's API
// servers or etcd, so it also removes a cluster that does not work. It does not wait for terminating objects, because
// a pod on a failed node may terminate indefinitely.
func (r *Reconciler) remove(ctx context.Context, cluster *v1alpha1.ApiServerCluster) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(cluster, finalizer) {
		return ctrl.Result{}, nil
	}
	lists := []client.ObjectList{ // pods before the network policies that protect them
		&policyv1.PodDisruptionBudgetList{}, &corev1.ServiceList{}, &corev1.PodList{}, &corev1.PersistentVolumeClaimList{},
		&appsv1.DeploymentList{}, &corev1.SecretList{}, &networkingv1.NetworkPolicyList{},
	}
	if cluster.IsExtension() {
		if left, err := r.unregister(ctx, cluster); err != nil || left {
			return ctrl.Result{RequeueAfter: immediately}, err
		}
		if err := r.revokeHostAccess(ctx, cluster); err != nil {
			return ctrl.Result{}, err
		}
		lists = append(lists, &corev1.ServiceAccountList{})
	}
	remaining := 0
	var errs []error
	for _, name := range []string{desired.RestorePodName(cluster), desired.RecoveryPodName(cluster)} {
		pod, err := r.jobPod(ctx, cluster, name) // which the list of pods does not contain
		if errors.Is(err, errForeign) {
			continue
		}
		errs = append(errs, err, r.deleteJobPod(ctx, pod))
	}
	for _, list := range lists {
		n, err := r.removeAll(ctx, cluster, list)
		remaining += n
		errs = append(errs, err)
	}
	if err := errors.Join(errs...); err != nil {
		return ctrl.Result{}, err
	}
	if remaining > 0 {
		return ctrl.Result{RequeueAfter: immediately}, nil
	}
	before := cluster.DeepCopy()
	controllerutil.RemoveFinalizer(cluster, finalizer)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, cluster, patch); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("removing the finalizer: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("Deleted all objects of the cluster")
	return ctrl.Result{}, nil
}

// removeAll deletes the cluster's objects of one kind and returns the number of those that were not terminating yet.
func (r *Reconciler) removeAll(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, list client.ObjectList,
) (int, error) {
	selector := client.MatchingLabels(desired.Selector(cluster))
	if err := r.Reader.List(ctx, list, client.InNamespace(cluster.Namespace), selector); err != nil {
		return 0, fmt.Errorf("listing the objects of the cluster: %w", err)
	}
	n := 0
	err := meta.EachListItem(list, func(item runtime.Object) error {
		object, ok := item.(client.Object)
		if !ok || !metav1.IsControlledBy(object, cluster) || object.GetDeletionTimestamp() != nil {
			return nil
		}
		n++
		err := r.Client.Delete(ctx, object, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting %s: %w", object.GetName(), err)
		}
		return nil
	})
	return n, err
}
