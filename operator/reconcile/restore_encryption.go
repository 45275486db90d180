package reconcile

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/encryption"
)

// restoredEncryption returns the state of encryption at rest with which a restored cluster starts. Its keys are those of the
// former cluster: from the named Secret, from the backup, or from the former cluster's own Secret. From then on spec.encryption
// applies: if it differs, stored objects are rewritten in the usual stages. The error is a missingKeyError if keys are missing.
func (r *Reconciler) restoredEncryption(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, m format.Manifest,
) (encryption.State, error) {
	keys := m.Snapshot.EncryptionKeys
	if len(keys) == 0 {
		return encryption.State{}, nil
	}
	data, origin, err := r.formerEncryption(ctx, cluster, m)
	if err != nil {
		return encryption.State{}, err
	}
	former, err := encryption.Parse(data)
	if err != nil {
		return encryption.State{}, &missingKeyError{fmt.Sprintf("%s has no encryption keys: %s", origin, err)}
	}
	state, missing := former.Restored(keys, desired.EncryptionScheme(cluster))
	if len(missing) > 0 {
		return state, &missingKeyError{fmt.Sprintf("objects in the backup are encrypted with %s, but the keys %s are missing in %s; "+
			"name a copy of the original cluster's Secret %s in spec.restore.encryptionKeysSecretRef",
			strings.Join(keys, ", "), strings.Join(missing, ", "), origin, formerEncryptionSecret(m))}
	}
	return state, nil
}

func formerEncryptionSecret(m format.Manifest) string {
	former := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: m.Cluster}}
	return desired.SecretName(former, desired.EncryptionSecret)
}

// formerEncryption returns the stored state of the former cluster, or nil if there is none, and where it was looked for last.
func (r *Reconciler) formerEncryption(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, m format.Manifest,
) (data []byte, origin string, err error) {
	spec := cluster.Spec.Restore
	if spec.EncryptionKeysSecretRef != nil {
		return r.encryptionState(ctx, cluster.Namespace, spec.EncryptionKeysSecretRef.Name)
	}
	if len(m.SealedKeys) > 0 && spec.Encryption != nil {
		keys, err := r.sealedKeys(ctx, cluster, m)
		if err != nil || len(keys.Encryption) > 0 {
			return keys.Encryption, "the backup", err
		}
	}
	if m.Namespace != cluster.Namespace || m.Cluster == "" || m.Cluster == cluster.Name {
		return nil, "the backup", nil
	}
	return r.encryptionState(ctx, cluster.Namespace, formerEncryptionSecret(m))
}

// encryptionState returns the state in a Secret, or nil if the Secret does not exist, and a description of the Secret.
func (r *Reconciler) encryptionState(ctx context.Context, namespace, name string) (data []byte, origin string, err error) {
	secret := &corev1.Secret{}
	err = r.Reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return nil, "Secret " + name + ", which does not exist", nil
	}
	if err != nil {
		return nil, "", fmt.Errorf("reading Secret %s: %w", name, err)
	}
	return secret.Data[desired.EncryptionStateKey], "Secret " + name, nil
}
