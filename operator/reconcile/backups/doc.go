// Package backups reconciles ApiServerBackups and ApiServerBackupSchedules, with two controllers that are independent
// of the controller of clusters. It also provides the condition and the metrics of backups. Package backup has the
// decisions.
//
// # Life of a backup
//
//   - The user, a schedule, an upgrade or the deletion of a cluster creates an ApiServerBackup. The controller adds a
//     finalizer.
//   - An attempt is recorded in the status (attempts, path, start time), and the next reconciliation creates its pod,
//     with the image of the cluster. The pod reads a member through the member's client port and writes to the
//     destination, because only a pod can mount a volume, and so that the data does not pass through the operator.
//   - The result of the pod is its termination message: the manifest with sizes, digests and the keys in use. It is
//     copied into the status, and the backup is completed. If the pod fails, another attempt is recorded and the failed
//     pod deleted, until backup.MaxAttempts pods have run.
//   - A completed or failed backup never changes again, except for the deletion of its pod.
//   - When the resource is deleted, its pod is stopped, and the data is deleted by another pod if deletionPolicy is
//     Delete. Then the finalizer is removed.
//
// # Life of a schedule
//
// At a scheduled time, ScheduleReconciler creates a backup whose name follows from that time, records the time as
// handled, and deletes backups beyond the limits of the schedule. Backups have no owner reference to their schedule or
// cluster, because they must survive both.
//
// # Reads and writes
//
// The package reads clusters, backups, schedules, pods and Secrets from the API server. It writes pods, the status and
// finalizers of backups, the status of schedules, and, before the first backup of a cluster, the Secret with the key
// that signs its backups. It never writes an ApiServerCluster.
//
// # Invariants
//
//   - A reconciliation of a backup takes one step. An attempt is recorded before its pod is created, and all status
//     writes of a backup have an optimistic lock, so that the operator may stop between any two steps and two operators
//     do not count an attempt twice.
//   - At most one pod of a backup runs: an attempt is recorded only after the pod of the previous one has ended.
//   - Data is never deleted while a pod of the backup could still write it.
//   - A schedule never deletes its newest completed backup, nor a backup that a cluster is being restored from.
//   - Secrets are mounted by the pod, or sealed for the recipients of the user. They are not part of a status, event or
//     argument.
//
// # What may block, and requeues
//
// Both controllers send requests only to the hosting cluster. A backup that waits is reconciled every two seconds, and
// its pod is watched. Conflicts are retried with growing delays. A schedule is reconciled at its next scheduled time,
// when a backup becomes overdue, when one of its backups or the spec of its cluster changes, and at least every ten
// minutes (retentionInterval).
package backups
