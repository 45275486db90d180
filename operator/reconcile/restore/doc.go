// Package restore restores a backup into the volume of the first member before a cluster starts, in a pod.
//
// # Life of a restore
//
//   - membership.Plan chooses one initial member, and package members creates its claim. While status.restore.completed
//     is not set, it creates no pod that could start a member.
//   - Restore checks that the backup and the Secrets that its pod needs exist, and creates the pod. The pod downloads,
//     verifies, decrypts and restores the backup into the claim, and moves the revision ahead, so that clients never
//     see it go back.
//   - Once the pod has succeeded, Restore stores the keys of the former cluster: the service-account keys and, if
//     objects in the backup are encrypted, the encryption keys. Then it sets status.restore.completed.
//   - The next reconciliation uses these keys, deletes the pod, and starts the member. Further members join it. If
//     spec.encryption or the keys differ from the restored keys, rotations follow in the usual stages.
//
// # Reads and writes
//
// Restore reads status.membership and status.restore, the pod CLUSTER-restore, the ApiServerBackup, the Secrets in
// spec.restore, and Secrets of a former cluster in the same namespace, all from the API server. It writes the pod, the
// Secrets of the keys, and status.restore.
//
// # Invariants
//
//   - A cluster is restored only while it is not bootstrapped: data that a member has acknowledged is never
//     overwritten.
//   - No member starts before the data is restored and verified and all keys are present. A member with other keys
//     would accept requests that it cannot decrypt or verify.
//   - status.restore.completed never changes back.
//   - A service-account key in a Secret is used only if it has the fingerprint in the manifest. Parts of a manifest
//     that were not verified are not used, unless the user skips the verification.
//
// # Order
//
// The step follows the observation and precedes the membership actions; it needs the claim that these create, so that a
// restore takes several reconciliations. Certificates are issued before it, but service-account keys are not, because
// the backup has them.
//
// # Crashes
//
// The pod is found again by its name, and its result is in its termination message. If the operator stops after it has
// stored the keys, the next reconciliation stores the same keys again; only with serviceAccountKeyPolicy: Replace is it
// another new key, which nothing has used yet. Once status.restore.completed is set, the pod is no longer needed, and
// any later reconciliation deletes it.
//
// # What may block, and requeues
//
// Nothing but requests to the hosting cluster: the pod does the work. The pod is owned, and so watched. An object that
// is missing, a failed attempt and a terminating pod are observed by the frequent reconciliations of a progressing
// cluster.
package restore
