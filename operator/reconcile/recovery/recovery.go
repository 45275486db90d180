package recovery

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/backups"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/preparation"
)

// job prepares the data of a cluster in a pod.
type job struct {
	owned.Objects
	state   *observed.State
	cluster *v1alpha1.ApiServerCluster
	now     time.Time
}

// Recover runs the pod that prepares the data of the only member while a recovery is in stage Restoring. The stage ends
// only with the pod's result: until then no member starts. Recover reports whether the pod is known not to have
// existed, also if it returns an error: only then is the volume of the member not in use.
func Recover(
	ctx context.Context, objects owned.Objects, state *observed.State, now time.Time,
) (podAbsent bool, err error) {
	if state.Cluster.Status.Recovery == nil {
		return false, nil
	}
	j := &job{Objects: objects, state: state, cluster: state.Cluster, now: now}
	pod, err := preparation.Find(ctx, j.Objects, j.cluster, desired.RecoveryPodName(j.cluster))
	if err != nil {
		return false, err
	}
	return pod == nil, j.recover(ctx, pod)
}

// recover takes the next step of a recovery. pod is its pod, or nil. In all stages but Restoring, and as soon as the
// user replaces the request, the pod is deleted, so that it does not write into a volume that a member uses. Nothing is
// created before the claim of the member exists, or while a pod is terminating.
func (j *job) recover(ctx context.Context, pod *corev1.Pod) error {
	current := j.cluster.Status.Recovery
	switch {
	case !j.cluster.Recovering(v1alpha1.RecoveryRestoring) || j.cluster.RecoveryRequested():
		return preparation.Delete(ctx, j.Objects, pod)
	case j.state.Claim(current.Member) == nil || pod != nil && pod.DeletionTimestamp != nil:
		return nil
	case pod == nil:
		return j.createRecoveryPod(ctx)
	case desired.JobUID(pod) != desired.RecoveryUID(j.cluster): // the pod belongs to a former request
		return preparation.Delete(ctx, j.Objects, pod)
	case pod.Status.Phase == corev1.PodFailed:
		return j.recoveryFailed(ctx, pod)
	case pod.Status.Phase == corev1.PodSucceeded:
		return j.finishRecovery(ctx, pod)
	}
	if problem := observed.Problem(pod); problem != "" {
		current.Reason, current.Message = v1alpha1.ReasonPodNotStarting, problem
	}
	return nil
}

// createRecoveryPod creates the pod that prepares the data: from the volume of the member, or from a backup. An object
// that a recovery from a backup needs and that is missing is reported in status.recovery, and the next reconciliation
// checks again.
func (j *job) createRecoveryPod(ctx context.Context) error {
	current := j.cluster.Status.Recovery
	pod := desired.RecoveryPod(j.cluster, j.state.Image)
	if from := current.Request.From; from != nil {
		backup, reason, message, err := preparation.StoredBackup(ctx, j.Reader, j.cluster.Namespace, *from)
		if err != nil {
			return err
		}
		if reason != "" {
			current.Reason, current.Message = reason, message
			return nil
		}
		secrets := desired.RestoreSecrets(backup.Location.Destination, current.Request.Encryption)
		reason, message, err = backups.Unusable(ctx, j.Reader, j.cluster.Namespace, secrets)
		if err != nil {
			return err
		}
		if reason != "" {
			current.Reason, current.Message = reason, message
			return nil
		}
		pod = desired.RecoveryFromBackupPod(j.cluster, j.state.Image, backup)
	}
	if err := j.Create(ctx, j.cluster, pod); err != nil {
		return err
	}
	if current.Reason != v1alpha1.ReasonRecoveryFailed {
		current.Reason, current.Message = "", "" // the former reason named a missing object
	}
	j.Event(j.cluster, owned.Event{
		Related: owned.Reference("Pod", pod), Reason: v1alpha1.ReasonSuccessfulCreate, Action: "Recover",
		Message: "Created Pod " + pod.Name + " to recover the data of " + current.Member,
	})
	return nil
}

// recoveryFailed reports why a recovery failed and repeats it after a while.
func (j *job) recoveryFailed(ctx context.Context, pod *corev1.Pod) error {
	current := j.cluster.Status.Recovery
	message := preparation.Failure(pod, current.Request.Encryption)
	if current.Reason != v1alpha1.ReasonRecoveryFailed || current.Message != message {
		current.Reason, current.Message = v1alpha1.ReasonRecoveryFailed, message
		j.Event(j.cluster, owned.Event{
			Warning: true, Related: owned.Reference("Pod", pod), Reason: v1alpha1.ReasonRecoveryFailed,
			Action: "Recover", Message: message,
		})
	}
	if !preparation.RetryDue(pod, j.now) {
		return nil
	}
	return preparation.Delete(ctx, j.Objects, pod)
}

// finishRecovery records that the data is prepared, and reports the lost writes. The pod has terminated, so that the
// member may start in the same reconciliation; the next one deletes the pod. A result whose verification the user no
// longer accepts is not used: only a new request, which begins with Stopping, discards the prepared data.
func (j *job) finishRecovery(ctx context.Context, pod *corev1.Pod) error {
	result, err := backups.ParseResult(pod)
	if err != nil {
		return err
	}
	current := j.cluster.Status.Recovery
	if from := current.Request.From; from != nil {
		if problem := preparation.NotVerified(result, *from); problem != "" {
			current.Reason, current.Message = v1alpha1.ReasonRecoveryFailed, problem+"; request another recovery"
			return nil
		}
	}
	before := j.cluster.DeepCopy()
	current.Verification = string(result.Verification)
	current.Stage, current.Reason, current.Message = v1alpha1.RecoveryStarting, "", ""
	current.Revision = result.Manifest.Snapshot.Revision
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := j.Client.Status().Patch(ctx, j.cluster, patch); err != nil {
		return fmt.Errorf("record the recovery: %w", err)
	}
	preparation.ReportUnverified(j.Objects, j.cluster, result, "Recover")
	j.Event(j.cluster, owned.Event{
		Warning: true, Reason: v1alpha1.ReasonQuorumRecovered, Action: "Recover",
		Message: fmt.Sprintf("etcd continues with the data of %s at revision %d; writes that are not in it are lost%s. "+
			"Reachable members before: %s",
			current.Source(), current.Revision, lostRevisions(current), cmp.Or(strings.Join(current.Survivors, ", "), "none")),
	})
	return nil
}

// lostRevisions describes the acknowledged revisions that the recovered data does not have, or returns "".
func lostRevisions(r *v1alpha1.RecoveryStatus) string {
	if r.AcknowledgedRevision <= r.Revision {
		return ""
	}
	return fmt.Sprintf(", among them the acknowledged revisions %d to %d", r.Revision+1, r.AcknowledgedRevision)
}
