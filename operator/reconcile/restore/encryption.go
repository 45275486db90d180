package restore

import (
	"context"
	"errors"
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

// restoredEncryption returns the state of encryption at rest with which a restored cluster starts. It has the keys of
// the former cluster, from the first source that has them: the Secret that the spec names, the backup, the former
// cluster's own Secret. Once the cluster runs, spec.encryption applies: if it differs, stored objects are rewritten in
// the usual stages. The error is a missingKeyError if keys are missing.
func (j *job) restoredEncryption(
	ctx context.Context, m format.Manifest,
) (encryption.State, error) {
	keys := m.Snapshot.EncryptionKeys
	if len(keys) == 0 {
		return encryption.State{}, nil
	}
	data, retiredData, origin, err := j.formerEncryption(ctx, m)
	if err != nil {
		return encryption.State{}, err
	}
	former, stateErr := encryption.Parse(data)
	retired, retiredErr := encryption.ParseRetired(retiredData)
	if err := errors.Join(stateErr, retiredErr); err != nil {
		return encryption.State{}, &missingKeyError{fmt.Sprintf("%s has no encryption keys: %s", origin, err)}
	}
	state, missing := former.Restored(keys, desired.EncryptionScheme(j.cluster), retired)
	if len(missing) > 0 {
		return state, &missingKeyError{fmt.Sprintf("objects in the backup are encrypted with %s, but the keys %s are "+
			"missing in %s; name a copy of the original cluster's Secret %s in spec.restore.encryptionKeysSecretRef",
			strings.Join(keys, ", "), strings.Join(missing, ", "), origin, formerEncryptionSecret(m))}
	}
	return state, nil
}

// formerEncryptionSecret returns the name of the Secret that held the encryption keys of the former cluster.
func formerEncryptionSecret(m format.Manifest) string {
	former := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: m.Cluster}}
	return desired.SecretName(former, desired.EncryptionSecret)
}

// formerEncryption returns the stored state and the retired schemes of the former cluster, or nil if there are none.
// origin describes the last source that was read. A backup contains the state at its time, and no retired schemes.
func (j *job) formerEncryption(
	ctx context.Context, m format.Manifest,
) (state, retired []byte, origin string, err error) {
	spec := j.cluster.Spec.Restore
	if spec.EncryptionKeysSecretRef != nil {
		return j.encryptionState(ctx, j.cluster.Namespace, spec.EncryptionKeysSecretRef.Name)
	}
	if len(m.SealedKeys) > 0 && spec.Encryption != nil {
		keys, err := j.sealedKeys(ctx, m)
		if err != nil || len(keys.Encryption) > 0 {
			return keys.Encryption, nil, "the backup", err
		}
	}
	if m.Namespace != j.cluster.Namespace || m.Cluster == "" || m.Cluster == j.cluster.Name {
		return nil, nil, "the backup", nil
	}
	return j.encryptionState(ctx, j.cluster.Namespace, formerEncryptionSecret(m))
}

// encryptionState returns the state and the retired schemes in a Secret, or nil if the Secret does not exist. origin
// describes the Secret.
func (j *job) encryptionState(
	ctx context.Context, namespace, name string,
) (state, retired []byte, origin string, err error) {
	secret := &corev1.Secret{}
	err = j.Reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return nil, nil, "Secret " + name + ", which does not exist", nil
	}
	if err != nil {
		return nil, nil, "", fmt.Errorf("read Secret %s: %w", name, err)
	}
	return secret.Data[desired.EncryptionStateKey], secret.Data[desired.RetiredKeysKey], "Secret " + name, nil
}
