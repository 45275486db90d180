package v1alpha1

// Reasons of CredentialsRotating. While credentials are rotated, the reason is the stage of the rotation:
// StageTrustBoth, StageReissue or StageDropOld.
const (
	// ReasonUpToDate: No authority or key is being replaced.
	//
	// Of: CredentialsRotating=False.
	ReasonUpToDate = "UpToDate"
)

// Reasons of APIServicesAvailable and of status.apiServices. An APIService that exists and is not available has the
// reason of its condition Available, which the API server with the APIService sets.
const (
	// ReasonConflict: An APIService or a Service with the name has another owner.
	//
	// Do: Delete or rename it. To move the objects of a CustomResourceDefinition, see docs/move.md.
	//
	// Of: APIServicesAvailable=False.
	ReasonConflict = "Conflict"

	// ReasonInvalidCABundle: The ConfigMap or Secret of the caBundle is missing or has no valid certificate.
	//
	// Do: Correct it.
	//
	// Of: APIServicesAvailable=False.
	ReasonInvalidCABundle = "InvalidCABundle"

	// ReasonRegistrationFailed: The APIService could not be written.
	//
	// Do: Correct the cause that the message names.
	//
	// Of: APIServicesAvailable=False.
	ReasonRegistrationFailed = "RegistrationFailed"

	// ReasonNotEvaluated: The operator could not connect to the API servers to read their APIServices.
	//
	// Do: Check the condition Available.
	//
	// Of: APIServicesAvailable=False.
	ReasonNotEvaluated = "NotEvaluated"

	// ReasonNotServed: No ready API server serves the group version yet.
	//
	// Do: Create the CustomResourceDefinition in the extension cluster.
	//
	// Of: APIServicesAvailable=False.
	ReasonNotServed = "NotServed"
)

// Reasons of CompanionsAvailable.
const (
	// ReasonCompanionsNotAvailable: Some pods of a companion are not available; the message has the cause.
	//
	// Do: Check the Deployment and its pods.
	//
	// Of: CompanionsAvailable=False.
	ReasonCompanionsNotAvailable = "CompanionsNotAvailable"
)

// Reasons of BackupReady, of clusters and schedules.
const (
	// ReasonBackupCurrent: The last scheduled backup is completed.
	//
	// Of: BackupReady=True, ApiServerBackupSchedule BackupReady=True.
	//
	// Event: Normal, ApiServerBackupSchedule.
	ReasonBackupCurrent = "BackupCurrent"

	// ReasonBackupsCurrent: The last scheduled backups of all schedules are completed.
	//
	// Of: BackupReady=True.
	ReasonBackupsCurrent = "BackupsCurrent"

	// ReasonBackupNotDue: No backup is due yet.
	//
	// Of: BackupReady=True, ApiServerBackupSchedule BackupReady=True.
	//
	// Event: Normal, ApiServerBackupSchedule.
	ReasonBackupNotDue = "BackupNotDue"

	// ReasonBackupOverdue: A scheduled time has passed without a completed backup.
	//
	// Do: Check the newest backup and its condition Complete.
	//
	// Of: BackupReady=False, ApiServerBackupSchedule BackupReady=False.
	//
	// Event: Warning, ApiServerBackupSchedule.
	ReasonBackupOverdue = "BackupOverdue"

	// ReasonNoCompletedBackup: A scheduled time has passed, and no completed backup exists: none was completed, or all
	// were deleted.
	//
	// Do: Look at the newest backup and its condition Complete; create an ApiServerBackup, or wait for the next scheduled
	// time.
	//
	// Of: BackupReady=False, ApiServerBackupSchedule BackupReady=False.
	//
	// Event: Warning, ApiServerBackupSchedule.
	ReasonNoCompletedBackup = "NoCompletedBackup"

	// ReasonBackupFailed: The newest backup has failed.
	//
	// Do: Correct the destination that the message names; the next backup starts from the beginning.
	//
	// Of: BackupReady=False, ApiServerBackupSchedule BackupReady=False, ApiServerBackup Complete=False.
	//
	// Event: Warning, ApiServerBackup and ApiServerBackupSchedule.
	ReasonBackupFailed = "BackupFailed"

	// ReasonScheduleSuspended: A backup is overdue because the schedule is suspended.
	//
	// Do: Set spec.suspend of the schedule to false.
	//
	// Of: BackupReady=False, ApiServerBackupSchedule BackupReady=False.
	//
	// Event: Warning, ApiServerBackupSchedule.
	ReasonScheduleSuspended = "ScheduleSuspended"
)

// Reasons of Paused.
const (
	// ReasonPausedByAnnotation: The operator makes no changes until the time in the annotation.
	//
	// Do: Remove the annotation to continue.
	//
	// Of: Paused=True.
	ReasonPausedByAnnotation = "PausedByAnnotation"

	// ReasonPauseExpired: The time in the annotation has passed.
	//
	// Do: Remove the annotation.
	//
	// Of: Paused=False.
	ReasonPauseExpired = "PauseExpired"
)

// Reasons of Deleting.
const (
	// ReasonDeletionProtected: The deletion was requested, but spec.deletion.protected is true: the cluster keeps running.
	//
	// Do: Set it to false to delete the cluster. A deletion cannot be withdrawn; to keep the data, set
	// spec.deletion.policy to Retain first, and adopt the data with a new cluster (docs/deletion.md).
	//
	// Of: Deleting=False.
	//
	// Event: Warning, ApiServerCluster.
	ReasonDeletionProtected = "DeletionProtected"

	// ReasonWaitingForFinalBackup: The backup in spec.deletion.finalBackup is not completed yet. Nothing is deleted
	// before.
	//
	// Of: Deleting=False.
	//
	// Event: Normal, ApiServerCluster.
	ReasonWaitingForFinalBackup = "WaitingForFinalBackup"

	// ReasonFinalBackupFailed: The final backup has failed. Nothing is deleted.
	//
	// Do: Correct the cause and delete the failed ApiServerBackup to take another one, or remove spec.deletion.finalBackup
	// to delete the cluster without a backup.
	//
	// Of: Deleting=False.
	//
	// Event: Warning, ApiServerCluster.
	ReasonFinalBackupFailed = "FinalBackupFailed"

	// ReasonFinalBackupBlocked: No final backup can be taken now; the message has the cause, such as a hibernated cluster.
	//
	// Do: Correct the cause, or remove spec.deletion.finalBackup to delete the cluster without a backup.
	//
	// Of: Deleting=False.
	//
	// Event: Warning, ApiServerCluster.
	ReasonFinalBackupBlocked = "FinalBackupBlocked"

	// ReasonDeletingObjects: The objects of the cluster are being deleted.
	//
	// Of: Deleting=True.
	ReasonDeletingObjects = "DeletingObjects"
)

// Reasons of Restored.
const (
	// ReasonBackupRestored: The backup in spec.restore was restored.
	//
	// Of: Restored=True.
	//
	// Event: Normal, ApiServerCluster.
	ReasonBackupRestored = "BackupRestored"

	// ReasonRestoreFailed: The pod that restores the backup failed; the message has the error that the pod reported.
	//
	// Do: Correct the location, or the Secret with the identities. The operator retries every 15 seconds.
	//
	// Of: Restored=False, Degraded=True.
	//
	// Event: Warning, ApiServerCluster.
	ReasonRestoreFailed = "RestoreFailed"

	// ReasonBackupNotAvailable: The ApiServerBackup does not exist or is not completed.
	//
	// Do: Wait, or name another backup.
	//
	// Of: Restored=False, Recovered=False, Degraded=True.
	ReasonBackupNotAvailable = "BackupNotAvailable"

	// ReasonBackupNotVerifiable: The spec names the location of a backup, but nothing that shows whether the backup was
	// replaced.
	//
	// Do: Set verificationKey or manifestSHA256 of the location, or skip the verification (docs/backup.md).
	//
	// Of: Restored=False, Recovered=False, Degraded=True.
	ReasonBackupNotVerifiable = "BackupNotVerifiable"

	// ReasonBackupNotVerified: The spec skips the verification, and the restored backup may have been replaced where it
	// was stored.
	//
	// Do: Check the objects of the cluster, in particular its roles and role bindings.
	//
	// Event: Warning, ApiServerCluster.
	ReasonBackupNotVerified = "BackupNotVerified"

	// ReasonServiceAccountKeyMissing: The backup contains no service-account key, and the spec names none.
	//
	// Do: Name a Secret with the key, or allow a new one (docs/backup.md).
	//
	// Of: Restored=False, Degraded=True.
	ReasonServiceAccountKeyMissing = "ServiceAccountKeyMissing"

	// ReasonEncryptionKeysMissing: Objects in the backup are encrypted at rest with keys that are missing.
	//
	// Do: Name a copy of the Secret with the keys (docs/backup.md).
	//
	// Of: Restored=False, Degraded=True.
	ReasonEncryptionKeysMissing = "EncryptionKeysMissing"
)

// Reasons of Recovered. While a recovery proceeds, the reason is its stage.
const (
	// ReasonNotNeeded: etcd had a quorum at the time of the request.
	//
	// Of: Recovered=True.
	ReasonNotNeeded = "NotNeeded"

	// ReasonQuorumRecovered: etcd has a quorum again; the message has the revision that it continues from.
	//
	// Do: Compare the revision with the last writes of clients; later writes are lost.
	//
	// Of: Recovered=True.
	//
	// Event: Warning, ApiServerCluster.
	ReasonQuorumRecovered = "QuorumRecovered"

	// ReasonRecoveryFailed: The pod of the recovery failed; the message has the error that the pod reported.
	//
	// Do: Correct the cause, or request a recovery from another member or a backup.
	//
	// Of: Recovered=False, Degraded=True.
	//
	// Event: Warning, ApiServerCluster.
	ReasonRecoveryFailed = "RecoveryFailed"
)

// Reasons of Complete of an ApiServerBackup.
const (
	// ReasonRunning: The pod of the backup is running.
	//
	// Of: ApiServerBackup Complete=Unknown.
	ReasonRunning = "Running"

	// ReasonObjectMissing: The claim or a Secret that the pod needs does not exist.
	//
	// Do: Create it; the pod is then created. The operator recreates the cluster's own Secrets, or its condition Degraded
	// has the reason why it does not.
	//
	// Of: ApiServerBackup Complete=Unknown, Restored=False, Recovered=False, Degraded=True.
	//
	// Event: Warning, ApiServerBackup and ApiServerCluster.
	ReasonObjectMissing = "ObjectMissing"

	// ReasonObjectInvalid: A Secret that the pod needs lacks a key, or contains recipients or identities that are not in
	// the format of age.
	//
	// Do: Correct it; the pod is created then.
	//
	// Of: ApiServerBackup Complete=Unknown, Restored=False, Recovered=False, Degraded=True.
	//
	// Event: Warning, ApiServerBackup and ApiServerCluster.
	ReasonObjectInvalid = "ObjectInvalid"

	// ReasonBackupCompleted: The backup is stored and verified.
	//
	// Of: ApiServerBackup Complete=True.
	//
	// Event: Normal, ApiServerBackup.
	ReasonBackupCompleted = "BackupCompleted"
)

// Reasons of Ready of an ApiServerBackupSchedule.
const (
	// ReasonScheduled: Backups are created on schedule.
	//
	// Of: ApiServerBackupSchedule Ready=True.
	ReasonScheduled = "Scheduled"

	// ReasonSuspended: spec.suspend is true.
	//
	// Do: Set it to false to continue.
	//
	// Of: ApiServerBackupSchedule Ready=False.
	ReasonSuspended = "Suspended"
)

// Reasons of Ready of an ApiServerKubeconfig.
const (
	// ReasonIssued: The Secret contains a valid kubeconfig.
	//
	// Of: ApiServerKubeconfig Ready=True.
	ReasonIssued = "Issued"

	// ReasonClusterNotFound: The ApiServerCluster does not exist or is being deleted.
	//
	// Do: Correct spec.clusterRef, or create the cluster.
	//
	// Of: ApiServerKubeconfig Ready=False.
	ReasonClusterNotFound = "ClusterNotFound"

	// ReasonClusterNotReady: The ApiServerCluster has no endpoint or no certificates yet.
	//
	// Of: ApiServerKubeconfig Ready=False.
	ReasonClusterNotReady = "ClusterNotReady"

	// ReasonSecretConflict: A Secret of that name has another owner.
	//
	// Do: Delete the Secret, or rename the ApiServerKubeconfig.
	//
	// Of: ApiServerKubeconfig Ready=False.
	ReasonSecretConflict = "SecretConflict"
)
