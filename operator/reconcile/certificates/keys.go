package certificates

import (
	"context"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/desired"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/rotations"
)

// checkServiceAccountKey records a loss of the service-account keys. With new keys, the tokens of all pods and users of
// the cluster would be invalid, so only the user may accept that.
//
// A missing Secret is a loss if a pod mounts it or the cluster has ever been bootstrapped: a hibernated cluster has no
// pods, but its clients still have tokens. While a backup is being restored, a missing Secret is normal, because the
// restore provides the key. A cluster in mode Extension has no such keys.
func (i *issuer) checkServiceAccountKey(ctx context.Context) error {
	name, current := desired.SecretName(i.cluster, desired.ServiceAccountSecret), &corev1.Secret{}
	found, err := i.Find(ctx, i.cluster, name, current)
	// ensureServiceAccountKey uses the same object, because a second read from the cache could differ.
	i.secrets[desired.ServiceAccountSecret] = current
	if err != nil || i.cluster.IsExtension() || i.cluster.MayReplaceSecret(name) {
		return err
	}
	const consequence = "all service-account tokens are signed with its keys"
	if found {
		if err := pki.ParseKeys(current.Data).Check(); err != nil {
			i.lost(name, "cannot be used ("+err.Error()+")", consequence)
		}
		return nil
	}
	if i.mounts(name) || i.cluster.Bootstrapped() && !i.cluster.Restoring() {
		i.lost(name, "is missing", consequence)
	}
	return nil
}

// ensureServiceAccountKey creates missing service-account keys, and brings the keys to the stage of their rotation.
// While a backup is being restored it creates none, because the restore provides the key of the backup; no member
// starts before.
//
// Keys that cannot be used are replaced only if checkServiceAccountKey has not recorded a loss, so after the user has
// permitted it. The creation time of the newest key is an annotation of the Secret. It decides when the next rotation
// is due, so it is updated only when a key is created, and not when a stage changes the other fields.
func (i *issuer) ensureServiceAccountKey(ctx context.Context) error {
	if i.cluster.IsExtension() {
		return nil // clients use tokens of the hosting cluster
	}
	current := i.secrets[desired.ServiceAccountSecret]
	found := current.ResourceVersion != ""
	if !found && (!i.mayChange() || i.cluster.Restoring()) {
		return nil
	}
	var err error
	keys, created := pki.ParseKeys(current.Data), i.Now
	if found && keys.Check() == nil {
		created = desired.KeyCreated(current)
	} else if keys = (pki.Keys{}); i.mayChange() {
		if keys.Signer, err = pki.NewServiceAccountKey(); err != nil {
			return err
		}
	}
	i.result.Credentials.Keys, i.result.Credentials.KeyCreated = keys, created
	if found && !i.mayChange() {
		return nil
	}
	if found {
		added := false
		if keys, added, err = rotations.AdvanceKeys(i.cluster, keys); err != nil {
			return err
		}
		if added {
			created = i.Now
		}
	}
	i.result.Credentials.Keys, i.result.Credentials.KeyCreated = keys, created
	return i.WriteSecret(ctx, i.cluster, found, current, desired.ServiceAccountKeys(i.cluster, keys, created))
}
