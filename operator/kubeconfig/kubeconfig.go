// Package kubeconfig reconciles ApiServerKubeconfigs. It issues a client certificate that the client authority of a
// cluster signs, publishes it in a Secret with a kubeconfig, and replaces it before it expires, and before a rotation
// of the cluster's authorities makes it invalid.
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
	"quorate.dev/operator/limited"
	"quorate.dev/operator/pki"
)

const (
	// finalizer keeps the resource until its Secret is deleted, also if the hosting cluster has no garbage collector.
	finalizer = "quorate.dev/kubeconfig"
	// resyncInterval is the longest time between two reconciliations of a kubeconfig.
	resyncInterval = 10 * time.Minute
	// retryInterval is the requeue interval while the cluster has no certificates or no endpoint yet.
	retryInterval = 5 * time.Second
)

// Reconciler reconciles ApiServerKubeconfigs.
type Reconciler struct {
	Client   client.Client // writes; lists kubeconfigs from a cache
	Reader   client.Reader // reads from the API server, not from a cache
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// Retries computes the delays after conflicts; see NewRetries.
	Retries *limited.Retries
}

// NewRetries returns delays after conflicts that begin at one second.
func NewRetries() *limited.Retries { return limited.NewRetries(time.Second) }

// Reconcile issues or renews the certificate of one ApiServerKubeconfig, and publishes it with the status.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	kubeconfig := &v1alpha1.ApiServerKubeconfig{}
	if err := r.Reader.Get(ctx, request.NamespacedName, kubeconfig); err != nil {
		r.Retries.Forget(request.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if kubeconfig.DeletionTimestamp != nil {
		return ctrl.Result{}, r.remove(ctx, kubeconfig)
	}
	before := kubeconfig.DeepCopy()
	if controllerutil.AddFinalizer(kubeconfig, finalizer) {
		if err := r.Client.Patch(ctx, kubeconfig, optimistic(before)); err != nil {
			return ctrl.Result{}, ignoreConflict(fmt.Errorf("add the finalizer: %w", err))
		}
		before = kubeconfig.DeepCopy()
	}
	wait, err := r.publish(ctx, kubeconfig)
	if apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) {
		return ctrl.Result{RequeueAfter: r.Retries.Conflict(request.NamespacedName)}, nil
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
		condition.Status, condition.Reason, condition.Message =
			metav1.ConditionFalse, v1alpha1.ReasonReconcileFailed, err.Error()
	}
	meta.SetStatusCondition(&kubeconfig.Status.Conditions, condition)
	if !equality.Semantic.DeepEqual(before.Status, kubeconfig.Status) {
		if patchErr := r.Client.Status().Patch(ctx, kubeconfig, optimistic(before)); patchErr != nil {
			err = errors.Join(err, ignoreConflict(fmt.Errorf("write the status: %w", patchErr)))
			return ctrl.Result{RequeueAfter: r.Retries.Conflict(request.NamespacedName)}, err
		}
	}
	r.Retries.Forget(request.NamespacedName)
	return ctrl.Result{RequeueAfter: wait}, err
}

// notReadyError is the reason why no kubeconfig can be issued now. An earlier kubeconfig stays in the Secret.
type notReadyError struct{ reason, message string }

func (e *notReadyError) Error() string { return e.message }

// authority holds the cluster of a kubeconfig, the authority that signs client certificates, and the certificates that
// verify the API servers.
type authority struct {
	cluster *v1alpha1.ApiServerCluster
	clients pki.Bundle
	trusted []byte // PEM certificates that verify the API servers
}

// publish writes the Secret if its content has to change, and fills in the status. It returns the time until it has to
// be called again.
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
		return 0, fmt.Errorf("read Secret %s: %w", key.Name, err)
	case found && !metav1.IsControlledBy(current, kubeconfig):
		return 0, &notReadyError{
			v1alpha1.ReasonSecretConflict, "A Secret named " + key.Name + " exists and has another owner",
		}
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

// at returns a time in whole seconds, the precision with which the API stores times.
func at(t time.Time) *metav1.Time { return &metav1.Time{Time: t.Truncate(time.Second).Local()} }

// authority reads the cluster of a kubeconfig and its certificates. It returns a notReadyError if the cluster or its
// certificates do not exist yet.
func (r *Reconciler) authority(ctx context.Context, kubeconfig *v1alpha1.ApiServerKubeconfig) (authority, error) {
	cluster := &v1alpha1.ApiServerCluster{}
	name := kubeconfig.Spec.ClusterRef.Name
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: kubeconfig.Namespace, Name: name}, cluster)
	switch {
	case apierrors.IsNotFound(err):
		return authority{}, &notReadyError{v1alpha1.ReasonClusterNotFound, "ApiServerCluster " + name + " does not exist"}
	case err != nil:
		return authority{}, fmt.Errorf("read ApiServerCluster %s: %w", name, err)
	case cluster.DeletionTimestamp != nil && !meta.IsStatusConditionFalse(cluster.Status.Conditions, v1alpha1.Deleting):
		return authority{}, &notReadyError{v1alpha1.ReasonClusterNotFound, "ApiServerCluster " + name + " is being deleted"}
	case kubeconfig.Spec.Server == "" && cluster.Status.Endpoint == "":
		return authority{}, &notReadyError{
			v1alpha1.ReasonClusterNotReady, "ApiServerCluster " + name + " has no endpoint yet",
		}
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

// clusterSecret reads a Secret of the cluster. It reads from the API server, because after a rotation, a certificate
// must not be signed by an outdated authority from a cache.
func (r *Reconciler) clusterSecret(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, suffix string,
) (*corev1.Secret, error) {
	secret := &corev1.Secret{}
	name := desired.SecretName(cluster, suffix)
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, secret)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read Secret %s: %w", name, err)
	}
	if err != nil || !desired.Owns(cluster, secret) {
		return nil, &notReadyError{
			v1alpha1.ReasonClusterNotReady, "ApiServerCluster " + cluster.Name + " has no certificates yet",
		}
	}
	return secret, nil
}

// write creates the Secret, or updates its data and labels if they differ. It fails with a conflict if the Secret was
// updated since current was read.
func (r *Reconciler) write(
	ctx context.Context, kubeconfig *v1alpha1.ApiServerKubeconfig, found bool, current, wanted *corev1.Secret,
) error {
	if !found {
		if err := controllerutil.SetControllerReference(kubeconfig, wanted, r.Client.Scheme()); err != nil {
			return err
		}
		if err := r.Client.Create(ctx, wanted); err != nil {
			return fmt.Errorf("create Secret %s: %w", wanted.Name, err)
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
		return fmt.Errorf("update Secret %s: %w", after.Name, err)
	}
	return nil
}

// remove deletes the Secret and then removes the finalizer.
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
		return fmt.Errorf("delete Secret %s: %w", key.Name, err)
	}
	if err := r.Client.Patch(ctx, kubeconfig, optimistic(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizer: %w", err)
	}
	return nil
}

// optimistic returns a patch that fails with a conflict if the object was updated since before was read.
func optimistic(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

func ignoreConflict(err error) error {
	if apierrors.IsConflict(err) {
		return nil
	}
	return err
}
