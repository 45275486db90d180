package atrest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/encryption"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/stages"
	"quorate.dev/operator/rotation"
)

// Keys is the result of EnsureKeys.
type Keys struct {
	State         encryption.State
	Configuration []byte           // EncryptionConfiguration of the API servers; empty: none
	Sockets       []desired.Socket // of KMS plugins
	// Undecryptable are resources that were removed from spec.encryption without a confirmation. They stay encrypted.
	Undecryptable []string
	Lost          error       // why the cluster must not be changed: the Secret lacks keys that are in use
	Due           []time.Time // when the key becomes due
}

// EnsureKeys brings the encryption keys to the stage of their rotation. Only a new cluster encrypts from the start. In
// any other cluster, every replica has to be able to decrypt with a new key before any replica encrypts with it, so
// that a change goes through the stages. The state and the lost keys are also valid if EnsureKeys returns an error.
//
// A lost key is detected before anything is written. A cluster that has never encrypted anything has no Secret. A
// restored cluster never counts as new, although it has not stored an object either: its objects are encrypted with the
// keys of the former cluster, which the restore has put into the Secret.
func EnsureKeys(ctx context.Context, objects owned.Objects, s *observed.State, now time.Time) (keys Keys, err error) {
	cluster, current := s.Cluster, &corev1.Secret{}
	found, err := objects.Find(ctx, cluster, desired.SecretName(cluster, desired.EncryptionSecret), current)
	if err != nil {
		return keys, err
	}
	if keys.State, err = encryption.Parse(current.Data[desired.EncryptionStateKey]); err != nil {
		return keys, err
	}
	retired, err := encryption.ParseRetired(current.Data[desired.RetiredKeysKey])
	if err != nil {
		return keys, err
	}
	if problem, err := lostKeys(ctx, objects, s, keys.State, current); err != nil || problem != "" {
		if problem != "" {
			name := desired.SecretName(cluster, desired.EncryptionSecret)
			keys.Lost = credentials.Lost(name, problem, "stored objects are encrypted with its keys")
		}
		return keys, err
	}
	var wanted encryption.Scheme
	wanted, keys.Undecryptable = wantedScheme(cluster, keys.State)
	starting := isNew(s) && !cluster.Restoring() // a restored cluster starts with the keys of the former cluster
	if !found && stages.Encryption.Current(cluster) == nil && (!starting || len(wanted.Resources) == 0) {
		return keys, nil
	}
	if starting && !keys.State.Changing() && !keys.State.Current.Same(wanted) {
		keys.State.Current, err = wanted.WithKey(keys.State.Current, true, now)
	} else {
		retired, err = keys.advance(ctx, objects, cluster, retired, now)
	}
	if err != nil {
		return keys, fmt.Errorf("change the encryption: %w", err)
	}
	if retired, err = NeededByBackups(ctx, objects.Reader, cluster, retired); err != nil {
		return keys, err
	}
	if err := objects.WriteSecret(
		ctx, cluster, found, current, desired.EncryptionKeys(cluster, keys.State, retired),
	); err != nil {
		return keys, err
	}
	keys.Sockets = desired.Sockets(keys.State)
	keys.Configuration, err = keys.State.Configuration()
	return keys, err
}

// advance brings the keys to the present stage of their rotation. It returns the retired schemes. DropOld promotes
// first, because a Secret that was restored from a copy of an earlier stage may still have the next scheme. The
// confirmation of the user is removed before the keys are written: in this stage the former scheme is no longer the
// current one, so the confirmation is not needed again if the write fails.
func (k *Keys) advance(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster,
	retired encryption.Retired, now time.Time,
) (encryption.Retired, error) {
	switch stage, _ := stages.Encryption.Stage(cluster); {
	case stage == rotation.TrustBoth && !k.State.Changing():
		return retired, k.addNext(cluster, now)
	case stage == rotation.Reissue:
		k.State = k.State.Promote()
	case stage == rotation.DropOld:
		k.State = k.State.Promote()
		retired = retired.With(k.State)
		k.State = k.State.Drop()
		return retired, forgetDecryption(ctx, objects, cluster)
	}
	return retired, nil
}

// addNext adds the next scheme, with which API servers can decrypt, if the present one has to be replaced. If only the
// resources have changed and the key is not due, the next scheme has the same key: a new key would be retired and kept
// for backups without need.
func (k *Keys) addNext(cluster *v1alpha1.ApiServerCluster, now time.Time) error {
	reason, times := due(cluster, k.State, now)
	k.Due = append(k.Due, times...)
	if reason == "" {
		return nil
	}
	wanted, _ := wantedScheme(cluster, k.State)
	reason, times = keyDue(cluster, k.State, now)
	k.Due = append(k.Due, times...)
	next, err := wanted.WithKey(k.State.Current, reason != "", now)
	k.State.Next = &next
	return err
}

// NeededByBackups returns the retired schemes without those whose keys no backup of the cluster needs. Encrypted
// backups count, too: they contain the keys of the time at which they began, not of a rotation during the backup, and
// keys that are not verified are not used. While a backup is in progress, all schemes are kept, because its keys are
// not known yet.
func NeededByBackups(
	ctx context.Context, reader client.Reader, cluster *v1alpha1.ApiServerCluster, retired encryption.Retired,
) (encryption.Retired, error) {
	if len(retired) == 0 {
		return nil, nil
	}
	list := &v1alpha1.ApiServerBackupList{}
	if err := reader.List(ctx, list, client.InNamespace(cluster.Namespace)); err != nil {
		return nil, fmt.Errorf("list backups: %w", err)
	}
	var keys []string
	for i := range list.Items {
		switch b := &list.Items[i]; {
		case b.Spec.ClusterName != cluster.Name || b.Status.Phase == v1alpha1.BackupFailed:
		case b.Status.Phase != v1alpha1.BackupCompleted:
			return retired, nil
		default:
			keys = append(keys, b.Status.EncryptionKeys...)
		}
	}
	return retired.Needed(keys), nil
}

// forgetDecryption removes the annotation DecryptAnnotation in the last stage of a change, so that the annotation does
// not confirm another change later.
func forgetDecryption(ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster) error {
	if _, ok := cluster.Annotations[v1alpha1.DecryptAnnotation]; !ok {
		return nil
	}
	before := cluster.DeepCopy()
	delete(cluster.Annotations, v1alpha1.DecryptAnnotation)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := objects.Client.Patch(ctx, cluster, patch); err != nil {
		return fmt.Errorf("remove the annotation %s: %w", v1alpha1.DecryptAnnotation, err)
	}
	return nil
}

// wantedScheme returns the scheme of the spec. If the spec no longer encrypts a resource and the user has not confirmed
// that its objects are to be decrypted, wantedScheme returns the scheme in use, and these resources.
func wantedScheme(
	cluster *v1alpha1.ApiServerCluster, state encryption.State,
) (wanted encryption.Scheme, undecryptable []string) {
	undecryptable = desired.Undecryptable(cluster, state.Current)
	if len(undecryptable) > 0 {
		return state.Current, undecryptable
	}
	return desired.EncryptionScheme(cluster), undecryptable
}

// lostKeys describes the problem of the Secret of the encryption keys, for example "is missing", if stored objects are
// encrypted with keys that the Secret lacks. Otherwise it returns "". It compares the Secret with the configuration
// that the replicas mount: a copy of the Secret from before a rotation is complete in itself, but lacks the keys that
// replicas have used since.
func lostKeys(
	ctx context.Context, objects owned.Objects, s *observed.State, state encryption.State, keys *corev1.Secret,
) (problem string, err error) {
	if len(keys.Data[desired.EncryptionStateKey]) == 0 {
		if lost, err := hasEncryption(ctx, objects, s); err != nil || !lost {
			return "", err
		}
		return "is missing", nil
	}
	files := &corev1.Secret{}
	if _, err := objects.Find(
		ctx, s.Cluster, desired.SecretName(s.Cluster, desired.ConfigurationSecret), files,
	); err != nil {
		return "", err
	}
	// Until all stored objects are rewritten, keys that only decrypt are also needed.
	stage, _ := stages.Encryption.Stage(s.Cluster)
	if missing := desired.MissingKeys(state, files, stage == rotation.Reissue); len(missing) > 0 {
		return "lacks the keys " + strings.Join(missing, ", "), nil
	}
	return "", nil
}

// isNew reports whether the cluster has never stored an object: it is not bootstrapped and has neither pods nor claims.
// An external etcd may contain objects, so such a cluster is never new.
func isNew(s *observed.State) bool {
	return !s.Cluster.ExternalEtcd() && !s.Cluster.Bootstrapped() && len(s.Pods) == 0 && len(s.Claims) == 0
}

// hasEncryption reports whether replicas need the keys of an EncryptionConfiguration, or needed them before their pods
// were deleted, for example because the cluster is hibernated. If the cluster has no pods, the stored configuration
// decides, even if spec.encryption was removed: objects stay encrypted until the user confirms the removal and all
// objects are rewritten. Afterwards the stored configuration still has the last keys, but does not encrypt with them.
func hasEncryption(ctx context.Context, objects owned.Objects, s *observed.State) (bool, error) {
	if slices.ContainsFunc(s.Pods, func(pod corev1.Pod) bool { return desired.MountsEncryption(&pod) }) {
		return true, nil
	}
	if isNew(s) || s.Cluster.Spec.Encryption == nil && len(s.Pods) > 0 {
		return false, nil
	}
	files := &corev1.Secret{}
	found, err := objects.Find(ctx, s.Cluster, desired.SecretName(s.Cluster, desired.ConfigurationSecret), files)
	if !found || s.Cluster.Spec.Encryption != nil {
		return found && desired.HasEncryption(files), err
	}
	stage, _ := stages.Encryption.Stage(s.Cluster)
	return len(desired.MissingKeys(encryption.State{}, files, stage == rotation.Reissue)) > 0, nil
}

// due returns why the EncryptionConfiguration has to be replaced, or "", and the times at which its key becomes due.
func due(cluster *v1alpha1.ApiServerCluster, state encryption.State, now time.Time) (reason string, due []time.Time) {
	wanted, _ := wantedScheme(cluster, state)
	if removed := state.Current.Uncovered(wanted); len(removed) > 0 {
		return "spec.encryption has changed, and the stored objects of " + strings.Join(removed, ", ") + " are decrypted", nil
	}
	if !state.Current.Same(wanted) {
		return "spec.encryption has changed", nil
	}
	return keyDue(cluster, state, now)
}

// keyDue returns why the encryption key has to be replaced, or "", and the times at which it becomes due. A key of a
// KMS plugin is replaced by the plugin.
func keyDue(
	cluster *v1alpha1.ApiServerCluster, state encryption.State, now time.Time,
) (reason string, due []time.Time) {
	spec := cluster.Spec.Encryption
	if spec == nil || spec.Provider == v1alpha1.KMSv2 || len(state.Current.Resources) == 0 {
		return "", nil
	}
	var renewal time.Time
	if age := spec.Keys.MaxAge; age != nil {
		renewal = state.Current.Created.Add(age.Duration)
	}
	return stages.Due(state.Current.Created, renewal, spec.Keys.RotateBefore, now)
}
