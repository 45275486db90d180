package backups

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// errKeyRefused marks the error that the Secret of the signing key could not be created.
var errKeyRefused = errors.New("the key that signs backups could not be created")

// ensureSigningKey creates the key that signs the backups of a cluster, in a Secret that the cluster owns, before the
// first backup. If the key is lost, it is replaced. Earlier backups stay verifiable, because their status has the
// digest of the manifest and the verification key. A Secret of another owner is not used: its owner could sign backups
// that the operator accepts.
func (r *Reconciler) ensureSigningKey(ctx context.Context, cluster *v1alpha1.ApiServerCluster) error {
	name, current := desired.SecretName(cluster, desired.BackupSigningSecret), &corev1.Secret{}
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, current)
	switch {
	case apierrors.IsNotFound(err):
		return r.createSigningKey(ctx, cluster)
	case err != nil:
		return fmt.Errorf("read Secret %s: %w", name, err)
	case !metav1.IsControlledBy(current, cluster):
		return fmt.Errorf("Secret %s exists, which the ApiServerCluster does not own; delete it", name)
	}
	if _, err := format.ParseSigningKey(current.Data[desired.SigningKey]); err != nil {
		return fmt.Errorf("Secret %s has no usable %s, delete it to create another key: %w", name, desired.SigningKey, err)
	}
	return nil
}

func (r *Reconciler) createSigningKey(ctx context.Context, cluster *v1alpha1.ApiServerCluster) error {
	text, err := format.NewSigningKey()
	if err != nil {
		return err
	}
	key, err := format.ParseSigningKey(text)
	if err != nil {
		return err
	}
	secret := desired.BackupSigning(cluster, text, string(format.VerificationKeyOf(key)))
	if err := controllerutil.SetControllerReference(cluster, secret, r.Client.Scheme()); err != nil {
		return err
	}
	if err := r.Client.Create(ctx, secret); err != nil {
		return fmt.Errorf("%w: create Secret %s: %w", errKeyRefused, secret.Name, err)
	}
	return nil
}
