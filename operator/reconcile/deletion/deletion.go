package deletion

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/retention"
	"quorate.dev/operator/status"
)

// Steps deletes clusters.
type Steps struct {
	Objects owned.Objects
	Etcd    *etcd.Pool
	Clock   clock.Clock
}

// Await returns why a cluster whose deletion was requested keeps running, or nil if its objects can be deleted now.
// Once their deletion has begun, nothing stops it: a cluster without some of its objects cannot run.
func (s Steps) Await(ctx context.Context, cluster *v1alpha1.ApiServerCluster) (*status.Wait, error) {
	switch {
	case cluster.DeletionStarted():
		return nil, nil
	case cluster.Spec.Deletion.Protected:
		return &status.Wait{Reason: v1alpha1.ReasonDeletionProtected,
			Message: "The cluster keeps running, because spec.deletion.protected is true. To delete it, set it to false. A " +
				"requested deletion cannot be withdrawn: to keep the data, set spec.deletion.policy to Retain first, and adopt " +
				"the data with a new cluster"}, nil
	case cluster.Spec.Deletion.FinalBackup == nil:
		return nil, nil
	}
	return s.awaitFinalBackup(ctx, cluster)
}

// Hold keeps a cluster whose deletion waits: it reports why, and keeps the garbage collector from deleting or orphaning
// the cluster's objects. If a client deletes the cluster with propagation policy Foreground or Orphan, the API server
// adds a finalizer with which the garbage collector begins immediately, without waiting for the operator's. Hold
// removes it in each reconciliation, until the deletion starts.
func (s Steps) Hold(ctx context.Context, cluster *v1alpha1.ApiServerCluster, wait *status.Wait) error {
	old := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.Deleting)
	if old == nil || old.Reason != wait.Reason || old.Message != wait.Message {
		s.Objects.Event(cluster, owned.Event{
			Warning: wait.Reason != v1alpha1.ReasonWaitingForFinalBackup, Reason: wait.Reason,
			Action: "Delete", Message: wait.Message,
		})
	}
	cascade := func(name string) bool {
		return name == metav1.FinalizerDeleteDependents || name == metav1.FinalizerOrphanDependents
	}
	if !slices.ContainsFunc(cluster.Finalizers, cascade) {
		return nil
	}
	before := cluster.DeepCopy()
	cluster.Finalizers = slices.DeleteFunc(cluster.Finalizers, cascade)
	if err := s.Objects.Client.Patch(
		ctx, cluster, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}),
	); err != nil {
		return fmt.Errorf("remove the finalizers of the garbage collector: %w", err)
	}
	return nil
}

// startDeletion records that the deletion of the cluster's objects begins, before the first one is deleted. The
// optimistic lock excludes that the user has protected the cluster, or requested a final backup, since it was read.
func (s Steps) startDeletion(ctx context.Context, cluster *v1alpha1.ApiServerCluster) error {
	if cluster.DeletionStarted() {
		return nil
	}
	before, now := cluster.DeepCopy(), metav1.NewTime(s.Clock.Now())
	cluster.Status.Deletion = &v1alpha1.DeletionStatus{StartTime: now}
	s.recordAcknowledged(cluster)
	meta.SetStatusCondition(&cluster.Status.Conditions, metav1.Condition{
		Type: v1alpha1.Deleting, Status: metav1.ConditionTrue,
		Reason: v1alpha1.ReasonDeletingObjects, LastTransitionTime: now,
		Message: "The objects of the cluster are being deleted", ObservedGeneration: cluster.Generation,
	})
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := s.Objects.Client.Status().Patch(ctx, cluster, patch); err != nil {
		return fmt.Errorf("record the start of the deletion: %w", err)
	}
	return nil
}

// recordAcknowledged updates the states in the status that members are known to have reached: a volume that is put back
// to an earlier state while it is retained is found when it is adopted. It is the last opportunity, since the memory of
// the operator is newer than the status, and the record of the deleted cluster contains the status.
func (s Steps) recordAcknowledged(cluster *v1alpha1.ApiServerCluster) {
	all := s.Etcd.Acknowledged(client.ObjectKeyFromObject(cluster).String())
	for i := range cluster.Status.Members {
		m := &cluster.Status.Members[i]
		newest, found := all[observed.ParseMemberID(m.ID)]
		if !found || newest.Index == 0 || m.Acknowledged != nil && m.Acknowledged.Index >= int64(newest.Index) {
			continue
		}
		m.Acknowledged = &v1alpha1.Acknowledged{
			Revision: newest.Revision, Index: int64(newest.Index), Term: int64(newest.Term), Time: metav1.NewTime(newest.Time),
		}
	}
}

// awaitFinalBackup creates the final backup if the spec asks for one and it does not exist. It returns the reason why
// the deletion waits, or nil if the deletion can continue.
func (s Steps) awaitFinalBackup(ctx context.Context, cluster *v1alpha1.ApiServerCluster) (*status.Wait, error) {
	name := FinalBackupName(cluster)
	b := &v1alpha1.ApiServerBackup{}
	err := s.Objects.Reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, b)
	switch {
	case apierrors.IsNotFound(err):
		return s.takeFinalBackup(ctx, cluster, name)
	case err != nil:
		return nil, fmt.Errorf("read backup %s: %w", name, err)
	}
	return finalBackupWait(cluster, b), nil
}

// finalBackupWait returns the reason for which the deletion of a cluster waits while its final backup exists. Every
// message about a case that only an administrator can end says how.
func finalBackupWait(cluster *v1alpha1.ApiServerCluster, b *v1alpha1.ApiServerBackup) *status.Wait {
	reason := ""
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BackupComplete); c != nil {
		reason = ": " + c.Message
	}
	switch {
	case b.Spec.ClusterName != cluster.Name:
		return &status.Wait{Reason: v1alpha1.ReasonFinalBackupBlocked,
			Message: "ApiServerBackup " + b.Name + " of another cluster has the name of the final backup; delete it" +
				withoutBackupHint}
	case b.DeletionTimestamp != nil:
		return &status.Wait{Reason: v1alpha1.ReasonWaitingForFinalBackup,
			Message: "Waiting until the former ApiServerBackup " + b.Name + " is deleted"}
	case b.CreationTimestamp.Before(cluster.DeletionTimestamp):
		return &status.Wait{Reason: v1alpha1.ReasonFinalBackupBlocked,
			Message: "ApiServerBackup " + b.Name +
				" is older than the request to delete the cluster; delete it to take the final backup" + withoutBackupHint}
	case b.Status.Phase == v1alpha1.BackupCompleted:
		return nil
	case b.Status.Phase == v1alpha1.BackupFailed:
		return &status.Wait{Reason: v1alpha1.ReasonFinalBackupFailed,
			Message: "Nothing is deleted, because the final backup failed; delete ApiServerBackup " + b.Name +
				" to take another one" + withoutBackupHint + reason}
	}
	return &status.Wait{
		Reason: v1alpha1.ReasonWaitingForFinalBackup, Message: "Waiting for final backup " + b.Name + reason,
	}
}

// withoutBackupHint ends messages about a final backup that cannot be completed.
const withoutBackupHint = ", or remove spec.deletion.finalBackup to delete the cluster without a backup"

// takeFinalBackup creates the final backup if the cluster has data and can be backed up now. A namespace that is being
// deleted accepts neither backups nor pods, and its volumes are deleted whatever the operator does: waiting would only
// keep the namespace. A cluster in which no member has ever run has nothing to back up.
func (s Steps) takeFinalBackup(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, name string,
) (*status.Wait, error) {
	stored, err := retention.HasData(ctx, s.Objects, cluster)
	if err != nil {
		return nil, err
	}
	if !stored {
		s.finalBackupSkipped(cluster, "No final backup is taken, because no member has ever run")
		return nil, nil
	}
	spec := cluster.Spec.Deletion.FinalBackup
	b := &v1alpha1.ApiServerBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: cluster.Namespace, Name: name, Labels: map[string]string{desired.ManagedByLabel: desired.ManagedBy},
		},
		Spec: v1alpha1.ApiServerBackupSpec{
			ClusterName: cluster.Name, Destination: spec.Destination, Encryption: spec.Encryption,
			TimeoutSeconds: spec.TimeoutSeconds, StartTimeoutSeconds: spec.StartTimeoutSeconds,
		},
	}
	if problem := finalBackupProblem(cluster); problem != "" {
		// The dry run finds a namespace that is being deleted: its clusters must not wait for an administrator.
		err = s.Objects.Client.Create(ctx, b, client.DryRunAll)
		if apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
			s.finalBackupSkipped(cluster, "No final backup can be taken, because the namespace is being deleted")
			return nil, nil
		}
		return &status.Wait{Reason: v1alpha1.ReasonFinalBackupBlocked, Message: problem + withoutBackupHint}, nil
	}
	switch err = s.Objects.Client.Create(ctx, b); {
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		s.finalBackupSkipped(cluster, "No final backup can be taken, because the namespace is being deleted")
		return nil, nil
	case apierrors.IsInvalid(err):
		return &status.Wait{Reason: v1alpha1.ReasonFinalBackupBlocked, Message: err.Error() + withoutBackupHint}, nil
	case client.IgnoreAlreadyExists(err) != nil:
		return nil, fmt.Errorf("create backup %s: %w", name, err)
	case err == nil && b.CreationTimestamp.Before(cluster.DeletionTimestamp):
		// The clocks of the hosting cluster's API servers differ. The next backup is created after the difference.
		err = s.Objects.Client.Delete(ctx, b, client.Preconditions{UID: &b.UID})
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("delete backup %s, which appears to be older than the deletion: %w", name, err)
		}
	case err == nil:
		s.Objects.Event(cluster, owned.Event{
			Reason: v1alpha1.ReasonFinalBackupCreated, Action: "Delete",
			Message: "Created ApiServerBackup " + name + " before the cluster is deleted",
		})
	}
	return &status.Wait{Reason: v1alpha1.ReasonWaitingForFinalBackup, Message: "Waiting for final backup " + name}, nil
}

// finalBackupProblem returns why a cluster cannot be backed up without an administrator, or "".
func finalBackupProblem(cluster *v1alpha1.ApiServerCluster) string {
	switch {
	case cluster.ExternalEtcd():
		return "The external etcd cannot be backed up: remove spec.deletion.finalBackup"
	case cluster.Hibernated():
		return "No final backup can be taken while the cluster is hibernated: scale it up"
	case !cluster.Bootstrapped(), !meta.IsStatusConditionTrue(cluster.Status.Conditions, v1alpha1.EtcdQuorum):
		return "No final backup can be taken while etcd has no quorum: restore its members"
	}
	return ""
}

func (s Steps) finalBackupSkipped(cluster *v1alpha1.ApiServerCluster, message string) {
	s.Objects.Event(cluster, owned.Event{
		Warning: true, Reason: v1alpha1.ReasonFinalBackupSkipped, Action: "Delete", Message: message,
	})
}

// FinalBackupName returns the name of the final backup. It contains a part of the UID, because backups outlive their
// cluster.
func FinalBackupName(cluster *v1alpha1.ApiServerCluster) string {
	const limit = 57 // of the names of backups
	const part = 8   // the first group of a UID
	suffix := "-final-" + string(cluster.UID[:min(len(cluster.UID), part)])
	return cluster.Name[:min(len(cluster.Name), limit-len(suffix))] + suffix
}
