package reconcile

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
)

// restoreRetryInterval is the time after which a restore that failed is repeated.
const restoreRetryInterval = 15 * time.Second

// restoreBackup restores the backup of spec.restore into the volume of the first member. No member starts before the
// data is restored and verified and all keys are present: then status.restore.completed is set, once.
func (r *Reconciler) restoreBackup(ctx context.Context, p *pass) error {
	if p.cluster.Spec.Restore == nil {
		return nil
	}
	pod, err := r.jobPod(ctx, p.cluster, desired.RestorePodName(p.cluster))
	if err != nil {
		return err
	}
	if !p.cluster.Restoring() {
		return r.deleteJobPod(ctx, pod)
	}
	intent := p.cluster.Status.Membership
	if intent == nil || len(intent.InitialMembers) == 0 || p.state.Claim(intent.InitialMembers[0]) == nil {
		return nil // the volume is created first
	}
	switch {
	case pod == nil:
		return r.createRestorePod(ctx, p, intent.InitialMembers[0])
	case pod.DeletionTimestamp != nil:
		return nil
	case desired.JobUID(pod) != desired.RestoreUID(p.cluster): // spec.restore names another backup now
		return r.deleteJobPod(ctx, pod)
	case pod.Status.Phase == corev1.PodFailed:
		return r.restoreFailed(ctx, p, pod)
	case pod.Status.Phase == corev1.PodSucceeded:
		return r.finishRestore(ctx, p, pod)
	}
	if problem := observed.Problem(pod); problem != "" && p.restoreBlocked(v1alpha1.ReasonPodNotStarting, problem) {
		r.event(p.cluster, event{
			warning: true, related: reference("Pod", pod), reason: v1alpha1.ReasonPodNotStarting, action: "Restore", message: problem,
		})
	}
	return nil
}

// jobPod returns a pod that prepares data, or nil.
func (r *Reconciler) jobPod(ctx context.Context, cluster *v1alpha1.ApiServerCluster, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	found, err := r.find(ctx, cluster, name, pod)
	if err != nil || !found {
		return nil, err
	}
	return pod, nil
}

func (r *Reconciler) deleteJobPod(ctx context.Context, pod *corev1.Pod) error {
	if pod == nil || pod.DeletionTimestamp != nil {
		return nil
	}
	return client.IgnoreNotFound(r.Client.Delete(ctx, pod))
}

func (r *Reconciler) createRestorePod(ctx context.Context, p *pass, member string) error {
	location, problem, err := r.backupLocation(ctx, p.cluster, p.cluster.Spec.Restore.From)
	if err != nil {
		return err
	}
	if problem != "" {
		p.restoreBlocked(v1alpha1.ReasonBackupNotAvailable, problem)
		return nil
	}
	secrets := desired.RestoreSecrets(location.Destination, p.cluster.Spec.Restore.Encryption)
	reason, message, err := backups.Unusable(ctx, r.Reader, p.cluster.Namespace, secrets)
	if err != nil {
		return err
	}
	if reason != "" {
		if p.restoreBlocked(reason, message) {
			r.event(p.cluster, event{warning: true, reason: reason, action: "Restore", message: message})
		}
		return nil
	}
	pod := desired.RestorePod(p.cluster, p.state.Image, member, location)
	if err := r.create(ctx, p.cluster, pod); err != nil {
		return err
	}
	if old := p.cluster.Status.Restore; old == nil || old.Reason != v1alpha1.ReasonRestoreFailed {
		p.restoreBlocked(v1alpha1.ReasonRestoring, "Pod "+pod.Name+" restores the backup")
	}
	r.event(p.cluster, event{
		related: reference("Pod", pod), reason: v1alpha1.ReasonSuccessfulCreate, action: "Restore",
		message: "Created Pod " + pod.Name + " to restore the backup " + location.Path,
	})
	return nil
}

// backupLocation returns where the backup is stored, or why it is not available.
func (r *Reconciler) backupLocation(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, from v1alpha1.RestoreSource,
) (location v1alpha1.BackupLocation, problem string, err error) {
	if from.Location != nil {
		return *from.Location, "", nil
	}
	b := &v1alpha1.ApiServerBackup{}
	err = r.Reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: from.BackupName}, b)
	switch {
	case apierrors.IsNotFound(err):
		return location, fmt.Sprintf("ApiServerBackup %s does not exist", from.BackupName), nil
	case err != nil:
		return location, "", fmt.Errorf("reading backup %s: %w", from.BackupName, err)
	case b.Status.Phase != v1alpha1.BackupCompleted:
		return location, fmt.Sprintf("ApiServerBackup %s is not completed: its phase is %q", b.Name, b.Status.Phase), nil
	}
	return v1alpha1.BackupLocation{Destination: b.Spec.Destination, Path: b.Status.Path}, "", nil
}

// restoreFailed reports why a restore failed and repeats it after a while: its cause, such as a missing Secret, may have
// been repaired.
func (r *Reconciler) restoreFailed(ctx context.Context, p *pass, pod *corev1.Pod) error {
	message := failureOf(pod, p.cluster.Spec.Restore.Encryption)
	if p.restoreBlocked(v1alpha1.ReasonRestoreFailed, message) {
		r.event(p.cluster, event{
			warning: true, related: reference("Pod", pod), reason: v1alpha1.ReasonRestoreFailed, action: "Restore", message: message,
		})
	}
	if !retryDue(pod, p.input.Now) {
		return nil
	}
	return r.deleteJobPod(ctx, pod)
}

// failureOf returns the message of a pod that failed to restore a backup. The pod does not know the name of the Secret.
func failureOf(pod *corev1.Pod, e *v1alpha1.BackupEncryption) string {
	message := strings.TrimPrefix(lastLine(backups.Failure(pod)), "Error: ")
	if e != nil && strings.Contains(message, format.ErrNoIdentity.Error()) {
		message += "; its identities are those of Secret " + e.SecretRef.Name
	}
	return message
}

// retryDue reports whether restoreRetryInterval has passed since a pod failed.
func retryDue(pod *corev1.Pod, now time.Time) bool {
	return now.Sub(backups.Ended(pod)) >= restoreRetryInterval
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

// restoreBlocked records why the restore is not completed. It reports whether that has changed.
func (p *pass) restoreBlocked(reason, message string) bool {
	old := p.cluster.Status.Restore
	if old != nil && old.Reason == reason && old.Message == message {
		return false
	}
	p.cluster.Status.Restore = &v1alpha1.RestoreStatus{Reason: reason, Message: message}
	return true
}

// finishRestore stores the service-account key of the former cluster and records that the backup is restored, or what
// is missing.
func (r *Reconciler) finishRestore(ctx context.Context, p *pass, pod *corev1.Pod) error {
	result, err := backups.ParseResult(pod)
	if err != nil {
		return err
	}
	m := result.Manifest
	atRest, err := r.restoredEncryption(ctx, p.cluster, m)
	if missing := (*missingKeyError)(nil); errors.As(err, &missing) {
		p.restoreBlocked(v1alpha1.ReasonEncryptionKeysMissing, missing.Error())
		return nil
	}
	if err != nil {
		return err
	}
	pair, err := r.restoredKey(ctx, p.cluster, m)
	if missing := (*missingKeyError)(nil); errors.As(err, &missing) {
		p.restoreBlocked(v1alpha1.ReasonServiceAccountKeyMissing, missing.Error())
		return nil
	}
	if err != nil {
		return err
	}
	if atRest.Active() {
		if err := r.ensureSecret(ctx, p.cluster, desired.EncryptionKeys(p.cluster, atRest)); err != nil {
			return err
		}
	}
	keys := desired.ServiceAccountKeys(p.cluster, pki.RestoredKeys(pair), p.input.Now)
	if err := r.ensureSecret(ctx, p.cluster, keys); err != nil {
		return err
	}
	before := p.cluster.DeepCopy()
	p.cluster.Status.Restore = &v1alpha1.RestoreStatus{
		Completed: true, Location: result.Location, SnapshotTime: &metav1.Time{Time: m.Created}, Revision: m.Snapshot.Revision,
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, p.cluster, patch); err != nil {
		return fmt.Errorf("recording the restore: %w", err)
	}
	p.restored = true
	r.event(p.cluster, event{
		reason: v1alpha1.ReasonBackupRestored, action: "Restore",
		message: fmt.Sprintf("Restored %s of %s, revision %d", result.Location, m.Created.Format(time.RFC3339), m.Snapshot.Revision),
	})
	return nil
}

// missingKeyError reports that a key of the former cluster is not available.
type missingKeyError struct{ message string }

func (e *missingKeyError) Error() string { return e.message }

// restoredKey returns the service-account key of the former cluster: from the named Secret, from the backup, or from
// the former cluster's own Secret. If the spec accepts that, it returns a new key.
func (r *Reconciler) restoredKey(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, m format.Manifest,
) (pki.Pair, error) {
	spec := cluster.Spec.Restore
	if spec.ServiceAccountKeySecretRef != nil {
		return r.keyOf(ctx, cluster.Namespace, spec.ServiceAccountKeySecretRef.Name, m)
	}
	var reasons []string
	if len(m.SealedKeys) > 0 && spec.Encryption != nil {
		pair, err := r.sealedKey(ctx, cluster, m)
		if err == nil {
			return pair, nil
		}
		reasons = append(reasons, err.Error())
	}
	if m.Namespace == cluster.Namespace && m.Cluster != "" && m.Cluster != cluster.Name {
		former := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: m.Cluster}}
		pair, err := r.keyOf(ctx, cluster.Namespace, desired.SecretName(former, desired.ServiceAccountSecret), m)
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
		"name a Secret in spec.restore.serviceAccountKeySecretRef, or set serviceAccountKeyPolicy to Replace", m.ServiceAccountKey)
	return pki.Pair{}, &missingKeyError{strings.Join(append([]string{message}, reasons...), "; ")}
}

// keyOf returns the key in a Secret if it is the key of the backup.
func (r *Reconciler) keyOf(ctx context.Context, namespace, name string, m format.Manifest) (pki.Pair, error) {
	secret := &corev1.Secret{}
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return pki.Pair{}, &missingKeyError{fmt.Sprintf("Secret %s does not exist", name)}
	}
	if err != nil {
		return pki.Pair{}, fmt.Errorf("reading Secret %s: %w", name, err)
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

// sealedKey decrypts the service-account key in the backup.
func (r *Reconciler) sealedKey(ctx context.Context, cluster *v1alpha1.ApiServerCluster, m format.Manifest) (pki.Pair, error) {
	keys, err := r.sealedKeys(ctx, cluster, m)
	if err != nil {
		return pki.Pair{}, err
	}
	return pki.Pair{Certificate: keys.ServiceAccountPublic, Key: keys.ServiceAccountPrivate}, nil
}

// sealedKeys decrypts the keys in the backup.
func (r *Reconciler) sealedKeys(ctx context.Context, cluster *v1alpha1.ApiServerCluster, m format.Manifest) (format.Keys, error) {
	name := cluster.Spec.Restore.Encryption.SecretRef.Name
	secret := &corev1.Secret{}
	if err := r.Reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, secret); err != nil {
		return format.Keys{}, fmt.Errorf("reading Secret %s: %w", name, err)
	}
	return format.Open(m.SealedKeys, secret.Data[desired.IdentitiesKey])
}
