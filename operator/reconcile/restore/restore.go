package restore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/backups"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/preparation"
)

// job prepares the data of a cluster in a pod.
type job struct {
	owned.Objects
	state     *observed.State
	cluster   *v1alpha1.ApiServerCluster
	now       time.Time
	completed bool // a backup was just restored
}

// Restore restores the backup of spec.restore into the volume of the first initial member, in a pod. No member starts
// before the data is restored and verified and all keys of the former cluster are present. Only then is
// status.restore.completed set, which never changes back. Restore reports whether it has set it now; the other fields
// of status.restore are set in the cluster of the state, and not written.
func Restore(
	ctx context.Context, objects owned.Objects, state *observed.State, now time.Time,
) (completed bool, err error) {
	j := &job{Objects: objects, state: state, cluster: state.Cluster, now: now}
	err = j.restore(ctx)
	return j.completed, err
}

// restore takes the next step of a restore. The pod is read before it is decided whether a restore is in progress, so
// that the pod of a completed restore is deleted. A pod of another request (RestoreUID) has restored other data and is
// replaced; so is a failed one, after a while. A pod that is terminating may still write, so nothing is created until
// it is gone.
func (j *job) restore(ctx context.Context) error {
	if j.cluster.Spec.Restore == nil {
		return nil
	}
	pod, err := preparation.Find(ctx, j.Objects, j.cluster, desired.RestorePodName(j.cluster))
	if err != nil {
		return err
	}
	if !j.cluster.Restoring() {
		return preparation.Delete(ctx, j.Objects, pod)
	}
	intent := j.cluster.Status.Membership
	if intent == nil || len(intent.InitialMembers) == 0 || j.state.Claim(intent.InitialMembers[0]) == nil {
		return nil // the membership step creates the volume first
	}
	switch {
	case pod == nil:
		return j.createRestorePod(ctx, intent.InitialMembers[0])
	case pod.DeletionTimestamp != nil:
		return nil
	case desired.JobUID(pod) != desired.RestoreUID(j.cluster): // spec.restore names another backup now
		return preparation.Delete(ctx, j.Objects, pod)
	case pod.Status.Phase == corev1.PodFailed:
		return j.restoreFailed(ctx, pod)
	case pod.Status.Phase == corev1.PodSucceeded:
		return j.finishRestore(ctx, pod)
	}
	if problem := observed.Problem(pod); problem != "" && j.blocked(v1alpha1.ReasonPodNotStarting, problem) {
		j.Event(j.cluster, owned.Event{
			Warning: true, Related: owned.Reference("Pod", pod), Reason: v1alpha1.ReasonPodNotStarting,
			Action: "Restore", Message: problem,
		})
	}
	return nil
}

// createRestorePod creates the pod that restores the backup, unless an object that the pod needs is missing: the pod
// would wait for it without a reason in its status. Such an obstacle is reported in status.restore, and the next
// reconciliation checks again. A message about a failed attempt stays while the next attempt runs.
func (j *job) createRestorePod(ctx context.Context, member string) error {
	backup, reason, message, err := preparation.StoredBackup(ctx, j.Reader, j.cluster.Namespace,
		j.cluster.Spec.Restore.From)
	if err != nil {
		return err
	}
	if reason != "" {
		j.blocked(reason, message)
		return nil
	}
	secrets := desired.RestoreSecrets(backup.Location.Destination, j.cluster.Spec.Restore.Encryption)
	reason, message, err = backups.Unusable(ctx, j.Reader, j.cluster.Namespace, secrets)
	if err != nil {
		return err
	}
	if reason != "" {
		if j.blocked(reason, message) {
			j.Event(j.cluster, owned.Event{Warning: true, Reason: reason, Action: "Restore", Message: message})
		}
		return nil
	}
	pod := desired.RestorePod(j.cluster, j.state.Image, member, backup)
	if err := j.Create(ctx, j.cluster, pod); err != nil {
		return err
	}
	if old := j.cluster.Status.Restore; old == nil || old.Reason != v1alpha1.ReasonRestoreFailed {
		j.blocked(v1alpha1.ReasonRestoring, "Pod "+pod.Name+" restores the backup")
	}
	j.Event(j.cluster, owned.Event{
		Related: owned.Reference("Pod", pod), Reason: v1alpha1.ReasonSuccessfulCreate, Action: "Restore",
		Message: "Created Pod " + pod.Name + " to restore the backup " + backup.Location.Path,
	})
	return nil
}

// verifiedManifest returns the manifest of a result without the parts that are not verified. Of a backup of an earlier
// release, only the digest of the snapshot is known. The names of its cluster and Secrets are then taken from the
// ApiServerBackup: who can replace the manifest in the destination could otherwise make the operator use keys of
// another cluster.
func (j *job) verifiedManifest(
	ctx context.Context, result format.Result,
) (format.Manifest, error) {
	m := result.Manifest
	if result.Verification != format.VerifiedBySnapshotDigest {
		return m, nil
	}
	m.SealedKeys, m.Namespace, m.Cluster = nil, "", ""
	b := &v1alpha1.ApiServerBackup{}
	err := j.Reader.Get(ctx,
		client.ObjectKey{Namespace: j.cluster.Namespace, Name: j.cluster.Spec.Restore.From.BackupName}, b)
	if client.IgnoreNotFound(err) != nil {
		return m, fmt.Errorf("read backup %s: %w", j.cluster.Spec.Restore.From.BackupName, err)
	}
	if err == nil {
		m.Namespace, m.Cluster = b.Namespace, b.Spec.ClusterName
	}
	return m, nil
}

// restoreFailed reports why a restore has failed, and repeats it after preparation.RetryInterval, because the cause,
// such as a missing Secret, may have been repaired.
func (j *job) restoreFailed(ctx context.Context, pod *corev1.Pod) error {
	message := preparation.Failure(pod, j.cluster.Spec.Restore.Encryption)
	if j.blocked(v1alpha1.ReasonRestoreFailed, message) {
		j.Event(j.cluster, owned.Event{
			Warning: true, Related: owned.Reference("Pod", pod), Reason: v1alpha1.ReasonRestoreFailed,
			Action: "Restore", Message: message,
		})
	}
	if !preparation.RetryDue(pod, j.now) {
		return nil
	}
	return preparation.Delete(ctx, j.Objects, pod)
}

// blocked sets in the status why the restore is not completed, and reports whether the status has changed. The end of
// the reconciliation writes the status.
func (j *job) blocked(reason, message string) bool {
	old := j.cluster.Status.Restore
	if old != nil && old.Reason == reason && old.Message == message {
		return false
	}
	j.cluster.Status.Restore = &v1alpha1.RestoreStatus{Reason: reason, Message: message}
	return true
}

// finishRestore stores the keys of the former cluster and records that the backup is restored, or which key is missing.
// The keys are stored first: once the restore is completed, members start. A missing key is not an error, because only
// the user can provide it: the result of the pod stays, and each reconciliation tries to read the key again.
func (j *job) finishRestore(ctx context.Context, pod *corev1.Pod) error {
	result, err := backups.ParseResult(pod)
	if err != nil {
		return err
	}
	if problem := preparation.NotVerified(result, j.cluster.Spec.Restore.From); problem != "" {
		j.blocked(v1alpha1.ReasonRestoreFailed, problem+"; delete the cluster and create it again")
		return nil
	}
	m, err := j.verifiedManifest(ctx, result)
	if err != nil {
		return err
	}
	atRest, err := j.restoredEncryption(ctx, m)
	if missing := (*missingKeyError)(nil); errors.As(err, &missing) {
		j.blocked(v1alpha1.ReasonEncryptionKeysMissing, missing.Error())
		return nil
	}
	if err != nil {
		return err
	}
	pair, err := j.restoredKey(ctx, m)
	if missing := (*missingKeyError)(nil); errors.As(err, &missing) {
		j.blocked(v1alpha1.ReasonServiceAccountKeyMissing, missing.Error())
		return nil
	}
	if err != nil {
		return err
	}
	if atRest.Active() {
		if err := j.EnsureSecret(ctx, j.cluster, desired.EncryptionKeys(j.cluster, atRest, nil)); err != nil {
			return err
		}
	}
	keys := desired.ServiceAccountKeys(j.cluster, pki.RestoredKeys(pair), j.now)
	if err := j.EnsureSecret(ctx, j.cluster, keys); err != nil {
		return err
	}
	before := j.cluster.DeepCopy()
	j.cluster.Status.Restore = &v1alpha1.RestoreStatus{
		Completed: true, Location: result.Location, SnapshotTime: &metav1.Time{Time: m.Created},
		Revision: m.Snapshot.Revision, Verification: string(result.Verification),
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := j.Client.Status().Patch(ctx, j.cluster, patch); err != nil {
		return fmt.Errorf("record the restore: %w", err)
	}
	j.completed = true
	preparation.ReportUnverified(j.Objects, j.cluster, result, "Restore")
	j.Event(j.cluster, owned.Event{
		Reason: v1alpha1.ReasonBackupRestored, Action: "Restore",
		Message: fmt.Sprintf("Restored %s of %s, revision %d", result.Location,
			m.Created.Format(time.RFC3339), m.Snapshot.Revision),
	})
	return nil
}

// missingKeyError is the error that a key of the former cluster is not available.
type missingKeyError struct{ message string }

func (e *missingKeyError) Error() string { return e.message }

// restoredKey returns the service-account key of the former cluster, from the first source that has it: the Secret that
// the spec names, the backup, the former cluster's own Secret. If none has it and the spec permits that, it returns a
// new key, with which all tokens of the former cluster are invalid.
//
// If the spec names a Secret, no other source is tried, because the user has decided. The reasons of the sources that
// were tried are part of the error, so that the user sees why, for example, the identities do not decrypt the keys.
func (j *job) restoredKey(
	ctx context.Context, m format.Manifest,
) (pki.Pair, error) {
	spec := j.cluster.Spec.Restore
	if spec.ServiceAccountKeySecretRef != nil {
		return j.keyOf(ctx, j.cluster.Namespace, spec.ServiceAccountKeySecretRef.Name, m)
	}
	var reasons []string
	if len(m.SealedKeys) > 0 && spec.Encryption != nil {
		pair, err := j.sealedKey(ctx, m)
		if err == nil {
			return pair, nil
		}
		reasons = append(reasons, err.Error())
	}
	if m.Namespace == j.cluster.Namespace && m.Cluster != "" && m.Cluster != j.cluster.Name {
		former := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: m.Cluster}}
		pair, err := j.keyOf(ctx, j.cluster.Namespace, desired.SecretName(former, desired.ServiceAccountSecret), m)
		if err == nil {
			return pair, nil
		}
		if missing := (*missingKeyError)(nil); !errors.As(err, &missing) {
			return pair, err
		}
		reasons = append(reasons, err.Error())
	}
	if spec.ServiceAccountKeyPolicy == v1alpha1.ReplaceServiceAccountKey {
		return pki.NewServiceAccountKey()
	}
	message := fmt.Sprintf("the backup does not contain the service-account key with fingerprint %s; "+
		"name a Secret in spec.restore.serviceAccountKeySecretRef, or set serviceAccountKeyPolicy to Replace",
		m.ServiceAccountKey)
	return pki.Pair{}, &missingKeyError{strings.Join(append([]string{message}, reasons...), "; ")}
}

// keyOf returns the key in a Secret, if it is the key that the backup's manifest names. A former cluster may have
// replaced its key since the backup was created; that key would not verify the tokens of the time of the backup.
func (j *job) keyOf(ctx context.Context, namespace, name string, m format.Manifest) (pki.Pair, error) {
	secret := &corev1.Secret{}
	err := j.Reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return pki.Pair{}, &missingKeyError{fmt.Sprintf("Secret %s does not exist", name)}
	}
	if err != nil {
		return pki.Pair{}, fmt.Errorf("read Secret %s: %w", name, err)
	}
	pair := pki.Pair{
		Certificate: secret.Data[desired.ServiceAccountPublicKey], Key: secret.Data[desired.ServiceAccountPrivateKey],
	}
	fingerprint := format.Fingerprint(pair.Certificate)
	switch {
	case len(pair.Certificate) == 0 || len(pair.Key) == 0:
		return pair, &missingKeyError{fmt.Sprintf("Secret %s lacks %s or %s",
			name, desired.ServiceAccountPublicKey, desired.ServiceAccountPrivateKey)}
	case m.ServiceAccountKey != "" && fingerprint != m.ServiceAccountKey:
		return pair, &missingKeyError{fmt.Sprintf("the key in Secret %s has fingerprint %s, but the key of the backup has %s",
			name, fingerprint, m.ServiceAccountKey)}
	}
	return pair, nil
}

// sealedKey decrypts the service-account key in a backup.
func (j *job) sealedKey(ctx context.Context, m format.Manifest) (pki.Pair, error) {
	keys, err := j.sealedKeys(ctx, m)
	if err != nil {
		return pki.Pair{}, err
	}
	return pki.Pair{Certificate: keys.ServiceAccountPublic, Key: keys.ServiceAccountPrivate}, nil
}

// sealedKeys decrypts all keys in a backup, with the identities in a Secret of the user.
func (j *job) sealedKeys(ctx context.Context, m format.Manifest) (format.Keys, error) {
	name := j.cluster.Spec.Restore.Encryption.SecretRef.Name
	secret := &corev1.Secret{}
	if err := j.Reader.Get(ctx, client.ObjectKey{Namespace: j.cluster.Namespace, Name: name}, secret); err != nil {
		return format.Keys{}, fmt.Errorf("read Secret %s: %w", name, err)
	}
	return format.Open(m.SealedKeys, secret.Data[desired.IdentitiesKey])
}
