package preparation

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/backups"
	"quorate.dev/operator/reconcile/owned"
)

// RetryInterval is the time after which a failed restore or recovery is repeated, counted from the end of the failed
// pod. The cause is usually an object that the user has to create or repair.
const RetryInterval = 15 * time.Second

// Find returns the pod with a name that prepares data of a cluster, or nil.
func Find(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, name string,
) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	found, err := objects.Find(ctx, cluster, name, pod)
	if err != nil || !found {
		return nil, err
	}
	return pod, nil
}

// Delete deletes a pod that prepares data. pod may be nil. A pod that is terminating is left alone; as long as it
// exists, callers treat the volume as in use, because its process may still write.
func Delete(ctx context.Context, objects owned.Objects, pod *corev1.Pod) error {
	if pod == nil || pod.DeletionTimestamp != nil {
		return nil
	}
	return client.IgnoreNotFound(objects.Client.Delete(ctx, pod))
}

// DeleteAll deletes the pods that prepare data of a cluster that is being deleted. The list of the cluster's pods does
// not contain them. A pod of another owner with such a name is ignored: it does not belong to the cluster, and must not
// delay the deletion.
func DeleteAll(ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster) error {
	var errs []error
	for _, name := range []string{desired.RestorePodName(cluster), desired.RecoveryPodName(cluster)} {
		pod, err := Find(ctx, objects, cluster, name)
		if errors.Is(err, owned.ErrForeign) {
			continue
		}
		errs = append(errs, err, Delete(ctx, objects, pod))
	}
	return errors.Join(errs...)
}

// StoredBackup returns where a backup is stored, and what its content has to match. If it cannot be restored,
// StoredBackup returns the reason and the message for the status.
//
// The source is either a location in the spec, which contains the expected digest or verification key, or the name of
// an ApiServerBackup, whose status contains the digest of the manifest. Backups of earlier releases have only the
// digest of the stored snapshot: their manifest is then not verified, and callers must not trust it (see
// verifiedManifest in package restore).
func StoredBackup(
	ctx context.Context, reader client.Reader, namespace string, from v1alpha1.RestoreSource,
) (backup desired.StoredBackup, reason, message string, err error) {
	backup.Expected.Unverified = from.Verification == v1alpha1.SkipVerification
	if from.Location != nil {
		backup.Location = *from.Location
		backup.Expected.ManifestSHA256, backup.Expected.VerificationKey =
			from.Location.ManifestSHA256, from.Location.VerificationKey
		if !backup.Expected.Known() {
			return backup, v1alpha1.ReasonBackupNotVerifiable, "Nothing shows whether the backup " +
				from.Location.Path + " was replaced: set verificationKey or manifestSHA256 of its location, which are in the " +
				"status of its ApiServerBackup, or set verification to Skip", nil
		}
		return backup, "", "", nil
	}
	b := &v1alpha1.ApiServerBackup{}
	err = reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: from.BackupName}, b)
	switch {
	case apierrors.IsNotFound(err):
		return backup, v1alpha1.ReasonBackupNotAvailable, fmt.Sprintf("ApiServerBackup %s does not exist", from.BackupName),
			nil
	case err != nil:
		return backup, "", "", fmt.Errorf("read backup %s: %w", from.BackupName, err)
	case b.Status.Phase != v1alpha1.BackupCompleted:
		message = fmt.Sprintf("ApiServerBackup %s is not completed: its phase is %q", b.Name, b.Status.Phase)
		return backup, v1alpha1.ReasonBackupNotAvailable, message, nil
	}
	backup.Location = v1alpha1.BackupLocation{Destination: b.Spec.Destination, Path: b.Status.Path}
	if backup.Expected.ManifestSHA256 = b.Status.ManifestSHA256; backup.Expected.ManifestSHA256 == "" {
		backup.Expected.StoredSHA256 = b.Status.SHA256
	}
	if !backup.Expected.Known() {
		message = fmt.Sprintf("ApiServerBackup %s has no SHA-256 in its status that shows whether it was replaced: "+
			"name another backup, or set verification to Skip", b.Name)
		return backup, v1alpha1.ReasonBackupNotVerifiable, message, nil
	}
	return backup, "", "", nil
}

// NotVerified returns why the result of a pod must not be used, or "": the pod's image does not verify backups, or the
// user has stopped accepting unverified backups. The result is checked again although the pod has checked the backup,
// because the spec may have changed while the pod was running.
func NotVerified(result format.Result, from v1alpha1.RestoreSource) string {
	switch {
	case result.Verification == "":
		return "the image is of an earlier release and has not verified the backup; set spec.image to the operator's"
	case result.Verification == format.Unverified && from.Verification != v1alpha1.SkipVerification:
		return "the backup was restored while verification was set to Skip"
	}
	return ""
}

// ReportUnverified records an event if nothing has shown whether a restored backup was replaced.
func ReportUnverified(
	objects owned.Objects, cluster *v1alpha1.ApiServerCluster, result format.Result, action string,
) {
	if result.Verification != format.Unverified {
		return
	}
	objects.Event(cluster, owned.Event{
		Warning: true, Reason: v1alpha1.ReasonBackupNotVerified, Action: action,
		Message: "Verification is set to Skip: nothing shows that " + result.Location + " is the backup that was created",
	})
}

// Failure returns the message of a pod that has failed to restore a backup. It adds the name of the Secret with the
// identities, which the pod does not know.
func Failure(pod *corev1.Pod, e *v1alpha1.BackupEncryption) string {
	message := strings.TrimPrefix(lastLine(backups.Failure(pod)), "Error: ")
	if e != nil && strings.Contains(message, format.ErrNoIdentity.Error()) {
		message += "; its identities are those of Secret " + e.SecretRef.Name
	}
	if strings.Contains(message, "unknown flag") {
		message += "; the image " + pod.Spec.Containers[0].Image +
			" is of an earlier release, which does not verify backups: set spec.image to the operator's"
	}
	return message
}

// RetryDue reports whether RetryInterval has passed since a pod terminated.
func RetryDue(pod *corev1.Pod, now time.Time) bool {
	return now.Sub(backups.Ended(pod)) >= RetryInterval
}

// lastLine returns the last line of a text.
func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}
