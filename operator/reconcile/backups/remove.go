package backups

import (
	"cmp"
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/backup"
	"quorate.dev/operator/desired"
)

// removeRetryInterval is the time after which a failed deletion of data is repeated.
const removeRetryInterval = 30 * time.Second

func (r *Reconciler) addFinalizer(ctx context.Context, b *v1alpha1.ApiServerBackup) error {
	base := b.DeepCopy()
	controllerutil.AddFinalizer(b, finalizer)
	return r.Client.Patch(ctx, b, client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{}))
}

// remove stops the pod of a backup, deletes the data if deletionPolicy is Delete, and then removes the finalizer. Each
// step is observed before the next one, in as many reconciliations as necessary: the pod is gone before the data is
// deleted, and the data before the finalizer, after which nothing would know of it.
func (r *Reconciler) remove(ctx context.Context, b *v1alpha1.ApiServerBackup) (ctrl.Result, error) {
	if !controllerutil.ContainsFinalizer(b, finalizer) {
		return ctrl.Result{}, nil
	}
	running, err := r.pod(ctx, b, desired.BackupPodName(b))
	if err != nil && !errors.Is(err, errForeign) {
		return ctrl.Result{}, err
	}
	if running != nil { // the pod must not write while the data is being deleted
		return ctrl.Result{RequeueAfter: waitInterval}, client.IgnoreNotFound(r.deleteOnce(ctx, running))
	}
	done, err := r.removeData(ctx, b)
	if err != nil || !done {
		return ctrl.Result{RequeueAfter: waitInterval}, err
	}
	base := b.DeepCopy()
	controllerutil.RemoveFinalizer(b, finalizer)
	return ctrl.Result{}, client.IgnoreNotFound(r.Client.Patch(ctx, b, client.MergeFrom(base)))
}

// deleteOnce deletes a pod unless it is already terminating.
func (r *Reconciler) deleteOnce(ctx context.Context, pod *corev1.Pod) error {
	if pod.DeletionTimestamp != nil {
		return nil
	}
	return r.Client.Delete(ctx, pod)
}

// removeData deletes the data of a backup with a pod, if deletionPolicy is Delete, and reports whether no data is left
// to delete. It repeats failures until the policy changes. In a terminating namespace no pod can be created, so the
// data is kept: a finalizer would otherwise keep the namespace for ever. A backup without a path has never started an
// attempt.
func (r *Reconciler) removeData(ctx context.Context, b *v1alpha1.ApiServerBackup) (bool, error) {
	keep := b.Spec.DeletionPolicy != v1alpha1.BackupDelete || b.Status.Path == ""
	pod, err := r.pod(ctx, b, desired.DeletePodName(b))
	if foreign := errors.Is(err, errForeign); err != nil && !(foreign && keep) {
		if foreign {
			r.deletionFailed(b, err.Error())
		}
		return false, err
	}
	switch {
	case pod == nil && keep:
		return true, nil
	case pod == nil:
		return r.createDeletePod(ctx, b)
	case pod.DeletionTimestamp != nil:
		return false, nil
	case pod.Status.Phase == corev1.PodSucceeded || keep:
		return !keep, client.IgnoreNotFound(r.Client.Delete(ctx, pod))
	}
	problem := r.deletionProblem(b, pod)
	if problem == "" {
		return false, nil
	}
	r.deletionFailed(b, problem)
	return false, client.IgnoreNotFound(r.Client.Delete(ctx, pod))
}

// deletionFailed records an event that the data of a backup could not be deleted.
func (r *Reconciler) deletionFailed(b *v1alpha1.ApiServerBackup, problem string) {
	r.event(b, corev1.EventTypeWarning, v1alpha1.ReasonDataDeletionFailed,
		"Failed to delete the data, retrying; set deletionPolicy to Retain to keep it: "+problem)
}

// deletionProblem returns why the pod that deletes the data of a backup has to be replaced now, or "": the pod failed
// at least removeRetryInterval ago, or has not started within the start timeout.
func (r *Reconciler) deletionProblem(b *v1alpha1.ApiServerBackup, pod *corev1.Pod) string {
	now := r.Clock.Now()
	switch state := stateOf(pod); {
	case state == backup.PodFailed && now.Sub(Ended(pod)) >= removeRetryInterval:
		return Failure(pod)
	case state == backup.PodStarting && now.Sub(pod.CreationTimestamp.Time) > startTimeout(b):
		return obstacle(pod, now)
	}
	return ""
}

// createDeletePod creates the pod that deletes the data. The cluster of the backup may no longer exist; its name then
// suffices, and the pod has the default image of the operator.
func (r *Reconciler) createDeletePod(ctx context.Context, b *v1alpha1.ApiServerBackup) (bool, error) {
	cluster := &v1alpha1.ApiServerCluster{}
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: b.Spec.ClusterName}, cluster)
	if apierrors.IsNotFound(err) {
		cluster.ObjectMeta = metav1.ObjectMeta{Name: b.Spec.ClusterName, Namespace: b.Namespace}
	} else if err != nil {
		return false, err
	}
	pod := desired.DeletePod(b, cluster, cmp.Or(cluster.Status.Image, r.Image))
	if err := controllerutil.SetControllerReference(b, pod, r.Client.Scheme()); err != nil {
		return false, err
	}
	err = r.Client.Create(ctx, pod)
	if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		r.event(b, corev1.EventTypeWarning, v1alpha1.ReasonDataRetained,
			"The namespace is being deleted; the data of the backup stays")
		return true, nil
	}
	return false, client.IgnoreAlreadyExists(err)
}
