package v1alpha1

// The reasons of conditions and events. release/reference generates docs/reference/conditions.md from reasons*.go: in
// each comment, the first paragraph is the meaning of the reason, "Do" is the action for an administrator, "Of" lists
// the conditions that can have the reason, with their status, and "Event" is the type of the event and the kinds of its
// objects. The operator also records each change of a condition's status as an event, with the reason of the condition.
// In "Of", a condition without a kind is a condition of ApiServerCluster.

// Reasons of several conditions.
const (
	// ReasonNotObserved: The objects of the cluster, or its etcd members, could not be read in the last pass.
	//
	// Do: Check the condition Degraded and the operator's log; the operator retries.
	//
	// Of: Available=Unknown, Progressing=Unknown, Degraded=Unknown, EtcdQuorum=Unknown, EtcdSpaceAvailable=Unknown,
	// CertificatesValid=Unknown, CredentialsRotating=Unknown, Recovered=Unknown, BackupReady=Unknown.
	ReasonNotObserved = "NotObserved"

	// ReasonHibernated: spec.replicas is 0.
	//
	// Do: Scale the cluster up to start it again.
	//
	// Of: Available=False, EtcdQuorum=False, BackupReady=True, ApiServerBackupSchedule BackupReady=True.
	ReasonHibernated = "Hibernated"

	// ReasonQuorumLost: A majority of the voters has been unreachable for some time.
	//
	// Do: Restore the pods and nodes. If their volumes are lost, request a recovery (docs/backup.md).
	//
	// Of: Available=False, Progressing=False, Degraded=True, EtcdQuorum=False.
	ReasonQuorumLost = "QuorumLost"

	// ReasonInvalidSpec: The spec, or a file that it refers to, is invalid; the message has the error of the API server's
	// own validation. No pod has been changed.
	//
	// Do: Correct the spec.
	//
	// Of: Degraded=True, Progressing=False, BackupReady=False, ApiServerBackupSchedule Ready=False,
	// ApiServerBackupSchedule BackupReady=False.
	ReasonInvalidSpec = "InvalidSpec"

	// ReasonAcknowledgedWritesLost: A member has acknowledged writes that the other members lack, because the volume of
	// another member was put back to an earlier state. The message names the member and the revisions. The member has
	// stopped; its volume is kept.
	//
	// Do: See docs/etcd.md, "Acknowledged writes that are lost".
	//
	// Of: Degraded=True.
	ReasonAcknowledgedWritesLost = "AcknowledgedWritesLost"

	// ReasonDataDiffers: Members have different data at the same revision, and it cannot be determined which data is
	// correct. The message names the members and the revision. The operator changes nothing.
	//
	// Do: See docs/etcd.md, "Damaged data".
	//
	// Of: Degraded=True.
	ReasonDataDiffers = "DataDiffers"

	// ReasonVolumeNotCompared: A voter was removed while it did not run, and another member had restarted since the voter
	// was last healthy. It may have acknowledged writes that the others lack, so its PersistentVolumeClaim is kept.
	//
	// Do: See docs/etcd.md, "Volumes that are kept".
	//
	// Of: Degraded=True.
	//
	// Event: Warning, ApiServerCluster.
	ReasonVolumeNotCompared = "VolumeNotCompared"

	// ReasonSecretLost: A Secret was deleted that cannot be safely recreated. The operator makes no changes.
	//
	// Do: Restore it, or allow its replacement (docs/certificates.md).
	//
	// Of: Degraded=True, Progressing=False.
	ReasonSecretLost = "SecretLost"

	// ReasonReconcileFailed: A step of the reconciliation failed; the message has the error of the hosting cluster's API
	// server, or of etcd.
	//
	// Do: Correct the cause that the message names; the operator retries.
	//
	// Of: Degraded=True, ApiServerKubeconfig Ready=False.
	ReasonReconcileFailed = "ReconcileFailed"

	// ReasonRecovering: The cluster is recovering from a lost quorum, as requested in spec.recovery.
	//
	// Of: Degraded=True, EtcdQuorum=False.
	ReasonRecovering = "Recovering"

	// ReasonBootstrappingEtcd: The initial members are starting; there is no quorum yet.
	//
	// Do: If it takes minutes, check the pods of the members.
	//
	// Of: EtcdQuorum=False.
	//
	// Event: Normal, ApiServerCluster.
	ReasonBootstrappingEtcd = "BootstrappingEtcd"

	// ReasonEtcdUnreachable: etcd does not respond to the operator, which does not know yet whether the quorum is lost. Of
	// Degraded: the external etcd does not respond to the API servers that the message names.
	//
	// Do: Wait, or check the pods and the NetworkPolicies; with an external etcd, check its members, the network and the
	// certificates.
	//
	// Of: EtcdQuorum=Unknown, EtcdSpaceAvailable=Unknown, Degraded=True.
	ReasonEtcdUnreachable = "EtcdUnreachable"

	// ReasonAllAvailable: All APIServices, or all companions, are available.
	//
	// Of: APIServicesAvailable=True, CompanionsAvailable=True.
	ReasonAllAvailable = "AllAvailable"

	// ReasonNoReadyReplicas: No API server is ready.
	//
	// Do: Check the pods of the cluster and their logs.
	//
	// Of: Available=False, APIServicesAvailable=False.
	ReasonNoReadyReplicas = "NoReadyReplicas"

	// ReasonPodNotStarting: The pod of a backup or a restore does not start; the message has the cause.
	//
	// Do: Free resources on the nodes, or correct the image, the claim or the Secret.
	//
	// Of: Restored=False, Recovered=False, Degraded=True, ApiServerBackup Complete=Unknown.
	//
	// Event: Warning, ApiServerCluster and ApiServerBackup.
	ReasonPodNotStarting = "PodNotStarting"

	// ReasonRestoring: A backup, or the data of a member, is being restored.
	//
	// Of: Restored=False, Recovered=False.
	ReasonRestoring = "Restoring"

	// ReasonPending: An APIService is waiting for its server, or a recovery is waiting until the quorum is known to be
	// lost.
	//
	// Of: APIServicesAvailable=False, Recovered=False.
	ReasonPending = "Pending"

	// ReasonWaiting: The operator is waiting; the message describes the cause.
	//
	// Of: Progressing=True, ApiServerBackup Complete=Unknown.
	ReasonWaiting = "Waiting"
)

// Reasons of Available.
const (
	// ReasonServing: At least one API server is ready and, with an embedded etcd, there is a quorum.
	//
	// Of: Available=True.
	ReasonServing = "Serving"
)

// Reasons of Progressing.
const (
	// ReasonPaused: The annotation quorate.dev/paused-until pauses the cluster.
	//
	// Do: Remove the annotation to continue.
	//
	// Of: Progressing=False.
	ReasonPaused = "Paused"

	// ReasonWaitingForEtcd: etcd is unreachable, so no change is safe.
	//
	// Do: Check the condition EtcdQuorum.
	//
	// Of: Progressing=True.
	ReasonWaitingForEtcd = "WaitingForEtcd"

	// ReasonRetrying: etcd temporarily rejected a change, for example while members are connecting.
	//
	// Of: Progressing=True.
	ReasonRetrying = "Retrying"

	// ReasonReconciling: The operator is making the change that the message describes.
	//
	// Of: Progressing=True.
	ReasonReconciling = "Reconciling"

	// ReasonWaitingForMaintenanceWindow: A change waits for the next maintenance window.
	//
	// Do: Remove spec.maintenance.windows to apply the change now.
	//
	// Of: Progressing=True.
	ReasonWaitingForMaintenanceWindow = "WaitingForMaintenanceWindow"

	// ReasonWaitingForReplicas: Pods are not ready yet.
	//
	// Do: If it takes minutes, check the condition Degraded and the pods.
	//
	// Of: Progressing=True.
	ReasonWaitingForReplicas = "WaitingForReplicas"

	// ReasonReconciled: The observed state matches the spec.
	//
	// Of: Progressing=False.
	ReasonReconciled = "Reconciled"
)

// Reasons of Degraded.
const (
	// ReasonInvalidConfiguration: A configuration file is invalid. The last valid files stay in use.
	//
	// Do: Correct the ConfigMap or Secret that the message names.
	//
	// Of: Degraded=True.
	ReasonInvalidConfiguration = "InvalidConfiguration"

	// ReasonDecryptionNotConfirmed: Resources were removed from spec.encryption, but their objects stay encrypted, because
	// the annotation quorate.dev/decrypt does not name them.
	//
	// Do: Add the resources to spec.encryption.resources again, or name them in the annotation.
	//
	// Of: Degraded=True.
	ReasonDecryptionNotConfirmed = "DecryptionNotConfirmed"

	// ReasonVolumeExpansionFailed: The volumes cannot be expanded to spec.storage.size.
	//
	// Do: Use a StorageClass that allows expansion, or set the previous size.
	//
	// Of: Degraded=True.
	ReasonVolumeExpansionFailed = "VolumeExpansionFailed"

	// ReasonEtcdAlarm: A member has raised an alarm.
	//
	// Do: For NOSPACE, see docs/etcd.md; CORRUPT members are replaced.
	//
	// Of: Degraded=True.
	ReasonEtcdAlarm = "EtcdAlarm"

	// ReasonPodsFailing: Pods are failing; the message has the cause of each.
	//
	// Do: Check the logs of these pods. If you have just changed the spec, undo the change.
	//
	// Of: Degraded=True.
	ReasonPodsFailing = "PodsFailing"

	// ReasonAsExpected: There are no known problems.
	//
	// Of: Degraded=False.
	ReasonAsExpected = "AsExpected"
)

// Reasons of EtcdQuorum.
const (
	// ReasonMembersHealthy: All voters are healthy.
	//
	// Of: EtcdQuorum=True.
	ReasonMembersHealthy = "MembersHealthy"

	// ReasonMembersUnhealthy: A majority of the voters is healthy, but some are not.
	//
	// Do: Restore the unhealthy members before another one is lost.
	//
	// Of: EtcdQuorum=True.
	ReasonMembersUnhealthy = "MembersUnhealthy"
)

// Reasons of EtcdSpaceAvailable.
const (
	// ReasonSpaceAvailable: All databases are below their soft quota.
	//
	// Of: EtcdSpaceAvailable=True.
	ReasonSpaceAvailable = "SpaceAvailable"

	// ReasonNoSpace: etcd has raised the NOSPACE alarm and rejects writes.
	//
	// Do: Delete objects, or raise spec.storage.size.
	//
	// Of: EtcdSpaceAvailable=False.
	ReasonNoSpace = "NoSpace"

	// ReasonSoftQuotaExceeded: Objects use so much of the quota that API servers reject writes that need more space.
	//
	// Do: Delete objects, or raise spec.storage.size.
	//
	// Of: EtcdSpaceAvailable=False.
	ReasonSoftQuotaExceeded = "SoftQuotaExceeded"

	// ReasonFragmented: A database file is nearly full, but much of its space is unused.
	//
	// Do: Wait for its defragmentation, or enable it (docs/etcd.md).
	//
	// Of: EtcdSpaceAvailable=False.
	ReasonFragmented = "Fragmented"
)

// Reasons of CertificatesValid.
const (
	// ReasonValid: No certificate has expired or is overdue for renewal; the message names the next one to expire.
	//
	// Of: CertificatesValid=True.
	ReasonValid = "Valid"

	// ReasonExpired: A certificate has expired.
	//
	// Do: Check the condition Degraded and the operator's log to find out why it was not renewed.
	//
	// Of: CertificatesValid=False.
	ReasonExpired = "Expired"

	// ReasonExpiringSoon: A certificate is overdue for renewal.
	//
	// Do: Check the condition Degraded and the operator's log. If the cluster is paused, end the pause.
	//
	// Of: CertificatesValid=False.
	ReasonExpiringSoon = "ExpiringSoon"

	// ReasonInvalidCertificate: Your certificate or authority is invalid. The one in use is kept.
	//
	// Do: Correct the Secret that the message names.
	//
	// Of: CertificatesValid=False.
	ReasonInvalidCertificate = "InvalidCertificate"
)
