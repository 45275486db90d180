package deletion

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	"quorate.dev/operator/reconcile/apiservices"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/preparation"
	"quorate.dev/operator/reconcile/retention"
)

const (
	// immediately is the requeue interval after objects were deleted. It is not zero, which would mean no requeue.
	immediately = time.Millisecond
	// terminationInterval is the requeue interval while objects wait for their finalizers.
	terminationInterval = 250 * time.Millisecond
)

// Finalizer keeps the cluster until its objects are deleted, also in hosting clusters without a garbage collector.
const Finalizer = "quorate.dev/cleanup"

// Remove deletes the objects that the cluster owns, or marks those as retained that stay, and then deletes the
// finalizer. It reads nothing from the cluster's API servers or etcd, so it also removes a cluster that does not work.
// It does not wait for terminating objects, because a pod on a failed node may terminate indefinitely.
//
// Objects that an interrupted adoption has taken from another deleted cluster are first returned, because they are not
// this cluster's data. A pass that has deleted objects is followed by another one, which finds objects that were
// created at the same time, for example by the Deployment controller or a second operator.
func (s Steps) Remove(ctx context.Context, cluster *v1alpha1.ApiServerCluster) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(cluster, Finalizer) {
		return ctrl.Result{}, nil
	}
	if err := s.startDeletion(ctx, cluster); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if err := retention.RevertAdoption(ctx, s.Objects, cluster, s.Clock.Now()); err != nil {
		return ctrl.Result{}, err
	}
	if err := retention.Retain(ctx, s.Objects, cluster); err != nil {
		return ctrl.Result{}, err
	}
	lists := []client.ObjectList{ // pods before the network policies that protect them
		&policyv1.PodDisruptionBudgetList{}, &corev1.ServiceList{}, &corev1.PodList{}, &corev1.PersistentVolumeClaimList{},
		&appsv1.DeploymentList{}, &corev1.SecretList{}, &networkingv1.NetworkPolicyList{},
	}
	if cluster.IsExtension() {
		deleted, terminating, err := apiservices.Unregister(ctx, s.Objects, cluster)
		switch {
		case err != nil:
			return ctrl.Result{}, err
		case deleted > 0:
			return ctrl.Result{RequeueAfter: immediately}, nil
		case terminating > 0:
			return ctrl.Result{RequeueAfter: terminationInterval}, nil
		}
		if err := apiservices.RevokeHostAccess(ctx, s.Objects, cluster); err != nil {
			return ctrl.Result{}, err
		}
		lists = append(lists, &corev1.ServiceAccountList{})
	}
	remaining := 0
	errs := []error{preparation.DeleteAll(ctx, s.Objects, cluster)}
	for _, list := range lists {
		n, err := s.removeAll(ctx, cluster, list)
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
	controllerutil.RemoveFinalizer(cluster, Finalizer)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := s.Objects.Client.Patch(ctx, cluster, patch); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("remove the finalizer: %w", err)
	}
	ctrl.LoggerFrom(ctx).Info("Deleted all objects of the cluster")
	return ctrl.Result{}, nil
}

// removeAll deletes the cluster's objects of one kind, except for retained objects, and returns the number of objects
// that were not terminating yet. Objects are found by their label and checked for their owner, since users may copy
// labels.
func (s Steps) removeAll(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, list client.ObjectList,
) (int, error) {
	selector := client.MatchingLabels(desired.Selector(cluster))
	if err := s.Objects.Reader.List(ctx, list, client.InNamespace(cluster.Namespace), selector); err != nil {
		return 0, fmt.Errorf("list the objects of the cluster: %w", err)
	}
	n := 0
	err := meta.EachListItem(list, func(item runtime.Object) error {
		object, ok := item.(client.Object)
		if !ok || !desired.Owns(cluster, object) || desired.RetainedFrom(object) != "" ||
			object.GetDeletionTimestamp() != nil {
			return nil
		}
		n++
		err := s.Objects.Client.Delete(ctx, object, client.PropagationPolicy(metav1.DeletePropagationBackground))
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete %s: %w", object.GetName(), err)
		}
		return nil
	})
	return n, err
}

// EnsureFinalizer adds the finalizer to a cluster. It is the first step of a reconciliation: a cluster that is deleted
// without the finalizer would leave objects that have no owner reference.
func EnsureFinalizer(ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster) error {
	before := cluster.DeepCopy()
	if !controllerutil.AddFinalizer(cluster, Finalizer) {
		return nil
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := objects.Client.Patch(ctx, cluster, patch); err != nil {
		return fmt.Errorf("add the finalizer: %w", err)
	}
	return nil
}
