// Package kubeconfig reconciles ApiServerKubeconfigs: it issues a client certificate by the authority of the cluster's
// clients, publishes it in a Secret with a kubeconfig, and replaces both before they become invalid.
package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/pki"
)

const (
	// finalizer keeps the resource until its Secret is deleted, also in hosting clusters without a garbage collector.
	finalizer = "quorate.dev/kubeconfig"
	// resyncInterval is the longest interval between reconciliations.
	resyncInterval = 10 * time.Minute
	// retryInterval applies while the cluster has no certificates yet.
	retryInterval = 5 * time.Second
)

// Reconciler reconciles ApiServerKubeconfigs.
type Reconciler struct {
	Client   client.Client // reads clusters and the Secrets that the operator owns from a cache
	Reader   client.Reader // not a cache
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
}

// Reconcile reconciles one ApiServerKubeconfig.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	kubeconfig := &v1alpha1.ApiServerKubeconfig{}
	if err := r.Reader.Get(ctx, request.NamespacedName, kubeconfig); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if kubeconfig.DeletionTimestamp != nil {
		return ctrl.Result{}, r.remove(ctx, kubeconfig)
	}
	before := kubeconfig.DeepCopy()
	if controllerutil.AddFinalizer(kubeconfig, finalizer) {
		if err := r.Client.Patch(ctx, kubeconfig, optimistic(before)); err != nil {
			return ctrl.Result{}, ignoreConflict(fmt.Errorf("adding the finalizer: %w", err))
		}
		before = kubeconfig.DeepCopy()
	}
	wait, err := r.publish(ctx, kubeconfig)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return ctrl.Result{RequeueAfter: time.Second}, nil
	}
	var notReady *notReadyError
	kubeconfig.Status.ObservedGeneration = kubeconfig.Generation
	condition := metav1.Condition{
		Type: v1alpha1.KubeconfigReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonIssued,
		Message: "The Secret has a valid kubeconfig", ObservedGeneration: kubeconfig.Generation,
	}
	switch {
	case errors.As(err, &notReady):
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, notReady.reason, notReady.message
		wait, err = retryInterval, nil
	case err != nil:
		condition.Status, condition.Reason, condition.Message = metav1.ConditionFalse, v1alpha1.ReasonReconcileFailed, err.Error()
	}
	meta.SetStatusCondition(&kubeconfig.Status.Conditions, condition)
	if !equality.Semantic.DeepEqual(before.Status, kubeconfig.Status) {
		if patchErr := r.Client.Status().Patch(ctx, kubeconfig, optimistic(before)); patchErr != nil {
			err = errors.Join(err, ignoreConflict(fmt.Errorf("writing the status: %w", patchErr)))
			wait = time.Second
		}
	}
	return ctrl.Result{RequeueAfter: wait}, err
}

// notReadyError is the reason why no kubeconfig can be issued now. A kubeconfig that was published before is kept.
type notReadyError struct{ reason, message string }

func (e *notReadyError) Error() string { return e.message }

// authority contains the parts of a cluster's certificates that its kubeconfigs need.
type authority struct {
	cluster *v1alpha1.ApiServerCluster
	clients pki.Bundle
	trusted []byte // certificates that verify the API servers'
}

// publish writes the Secret if it has to change, and the status. It returns when it has to be called again.
func (r *Reconciler) publish(ctx context.Context, kubeconfig *v1alpha1.ApiServerKubeconfig) (time.Duration, error) {
	a, err := r.authority(ctx, kubeconfig)
	if err != nil {
		return 0, err
	}
	current := &corev1.Secret{}
	key := client.ObjectKey{Namespace: kubeconfig.Namespace, Name: desired.KubeconfigSecretName(kubeconfig)}
	err = r.Reader.Get(ctx, key, current)
	found := err == nil
	switch {
	case client.IgnoreNotFound(err) != nil:
		return 0, fmt.Errorf("reading Secret %s: %w", key.Name, err)
	case found && !metav1.IsControlledBy(current, kubeconfig):
		return 0, &notReadyError{v1alpha1.ReasonSecretConflict, "A Secret named " + key.Name + " exists and has another owner"}
	}
	now := r.Clock.Now()
	wanted, reason, err := desired.KubeconfigSecret(kubeconfig, a.cluster, a.clients, a.trusted, current, now)
	if err != nil {
		return 0, err
	}
	if err := r.write(ctx, kubeconfig, found, current, wanted); err != nil {
		return 0, err
	}
	if reason != "" {
		r.Recorder.Eventf(kubeconfig, nil, corev1.EventTypeNormal, v1alpha1.ReasonCertificateIssued, "Issue",
			"Issued certificate in Secret %s: %s", wanted.Name, reason)
	}
	_, due, expiry, err := pki.Validity(desired.PairOf(wanted))
	if err != nil {
		return 0, err
	}
	kubeconfig.Status.SecretRef = &corev1.LocalObjectReference{Name: wanted.Name}
	kubeconfig.Status.ExpirationTime, kubeconfig.Status.RenewalTime = at(expiry), at(due)
	return max(min(due.Sub(now), resyncInterval), time.Millisecond), nil
}

// at returns a time with the precision of the API.
func at(t time.Time) *metav1.Time { return &metav1.Time{Time: t.Truncate(time.Second).Local()} }

func (r *Reconciler) authority(ctx context.Context, kubeconfig *v1alpha1.ApiServerKubeconfig) (authority, error) {
	cluster := &v1alpha1.ApiServerCluster{}
	name := kubeconfig.Spec.ClusterRef.Name
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: kubeconfig.Namespace, Name: name}, cluster)
	switch {
	case apierrors.IsNotFound(err):
		return authority{}, &notReadyError{v1alpha1.ReasonClusterNotFound, "ApiServerCluster " + name + " does not exist"}
	case err != nil:
		return authority{}, fmt.Errorf("reading ApiServerCluster %s: %w", name, err)
	case cluster.DeletionTimestamp != nil:
		return authority{}, &notReadyError{v1alpha1.ReasonClusterNotFound, "ApiServerCluster " + name + " is being deleted"}
	case kubeconfig.Spec.Server == "" && cluster.Status.Endpoint == "":
		return authority{}, &notReadyError{v1alpha1.ReasonClusterNotReady, "ApiServerCluster " + name + " has no endpoint yet"}
	}
	signer, err := r.clusterSecret(ctx, cluster, desired.ClientDomain)
	if err != nil {
		return authority{}, err
	}
	serving, err := r.clusterSecret(ctx, cluster, desired.ServingSecret)
	if err != nil {
		return authority{}, err
	}
	bundle, err := pki.ParseBundle(signer.Data)
	if err != nil {
		return authority{}, fmt.Errorf("authority %s: %w", desired.ClientDomain, err)
	}
	return authority{cluster: cluster, clients: bundle, trusted: serving.Data[desired.AuthorityKey]}, nil
}

// clusterSecret reads a Secret of the cluster, not from a cache: after a rotation, a stale authority must not sign.
func (r *Reconciler) clusterSecret(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, suffix string,
) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	name := desired.SecretName(cluster, suffix)
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("reading Secret %s: %w", name, err)
	}
	if err != nil || !metav1.IsControlledBy(secret, cluster) {
		return nil, &notReadyError{v1alpha1.ReasonClusterNotReady, "ApiServerCluster " + cluster.Name + " has no certificates yet"}
	}
	return secret, nil
}

func (r *Reconciler) write(
	ctx context.Context, kubeconfig *v1alpha1.ApiServerKubeconfig, found bool, current, wanted *corev1.Secret,
) error {
	if !found {
		if err := controllerutil.SetControllerReference(kubeconfig, wanted, r.Client.Scheme()); err != nil {
			return err
		}
		if err := r.Client.Create(ctx, wanted); err != nil {
			return fmt.Errorf("creating Secret %s: %w", wanted.Name, err)
		}
		return nil
	}
	after := current.DeepCopy()
	after.Data = wanted.Data
	for name, value := range wanted.Labels {
		metav1.SetMetaDataLabel(&after.ObjectMeta, name, value)
	}
	if equality.Semantic.DeepEqual(current, after) {
		return nil
	}
	if err := r.Client.Update(ctx, after); err != nil {
		return fmt.Errorf("updating Secret %s: %w", after.Name, err)
	}
	return nil
}

// remove deletes the Secret and then the finalizer.
func (r *Reconciler) remove(ctx context.Context, kubeconfig *v1alpha1.ApiServerKubeconfig) error {
	before := kubeconfig.DeepCopy()
	if !controllerutil.RemoveFinalizer(kubeconfig, finalizer) {
		return nil
	}
	secret := &corev1.Secret{}
	key := client.ObjectKey{Namespace: kubeconfig.Namespace, Name: desired.KubeconfigSecretName(kubeconfig)}
	err := r.Reader.Get(ctx, key, secret)
	if err == nil && metav1.IsControlledBy(secret, kubeconfig) {
		err = r.Client.Delete(ctx, secret, client.Preconditions{UID: &secret.UID})
	}
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("deleting Secret %s: %w", key.Name, err)
	}
	if err := r.Client.Patch(ctx, kubeconfig, optimistic(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("removing the finalizer: %w", err)
	}
	return nil
}

func optimistic(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}
