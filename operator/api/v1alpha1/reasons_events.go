package v1alpha1

// Reasons of events about etcd's members.
const (
	// ReasonEtcdBootstrapped: The initial members formed a quorum.
	//
	// Event: Normal, ApiServerCluster.
	ReasonEtcdBootstrapped = "EtcdBootstrapped"

	// ReasonMemberJoining: The operator begins to add a member.
	//
	// Event: Normal, ApiServerCluster.
	ReasonMemberJoining = "MemberJoining"

	// ReasonLearnerAdded: A member joined as a learner and is catching up.
	//
	// Event: Normal, ApiServerCluster.
	ReasonLearnerAdded = "LearnerAdded"

	// ReasonLearnerPromoted: A learner became a voter.
	//
	// Event: Normal, ApiServerCluster.
	ReasonLearnerPromoted = "LearnerPromoted"

	// ReasonMemberJoinFinished: The operator finished or gave up adding a member.
	//
	// Event: Normal, ApiServerCluster.
	ReasonMemberJoinFinished = "MemberJoinFinished"

	// ReasonLeaderMoved: The leader transferred leadership before it is restarted or removed.
	//
	// Event: Normal, ApiServerCluster.
	ReasonLeaderMoved = "LeaderMoved"

	// ReasonMemberRemoved: A member was removed from etcd.
	//
	// Event: Normal, ApiServerCluster.
	ReasonMemberRemoved = "MemberRemoved"

	// ReasonVolumeRetained: The PersistentVolumeClaim of a member that was replaced, or of a cluster that is deleted, is
	// kept, because it has, or may have, acknowledged writes that the other members lack. It does not belong to the
	// cluster any more.
	//
	// Event: Warning, ApiServerCluster.
	ReasonVolumeRetained = "VolumeRetained"

	// ReasonRecoveringEtcd: All replicas are being stopped, because spec.recovery requests a recovery.
	//
	// Event: Normal, ApiServerCluster.
	ReasonRecoveringEtcd = "RecoveringEtcd"

	// ReasonRestoringQuorum: The data of the recovered member is being prepared.
	//
	// Event: Normal, ApiServerCluster.
	ReasonRestoringQuorum = "RestoringQuorum"

	// ReasonRecoveryNotNeeded: A recovery was requested while etcd had a quorum.
	//
	// Event: Normal, ApiServerCluster.
	ReasonRecoveryNotNeeded = "RecoveryNotNeeded"

	// ReasonDefragmentingMember: A member is being defragmented; requests to its API server wait.
	//
	// Event: Normal, ApiServerCluster.
	ReasonDefragmentingMember = "DefragmentingMember"

	// ReasonMemberDefragmented: A member was defragmented.
	//
	// Event: Normal, ApiServerCluster.
	ReasonMemberDefragmented = "MemberDefragmented"

	// ReasonDefragmentationFailed: A defragmentation failed.
	//
	// Do: Correct the cause that the message names; the operator retries with back-off.
	//
	// Event: Warning, ApiServerCluster.
	ReasonDefragmentationFailed = "DefragmentationFailed"
)

// Reasons of events about credentials.
const (
	// ReasonCertificateIssued: A certificate was issued or renewed.
	//
	// Event: Normal, ApiServerCluster and ApiServerKubeconfig.
	ReasonCertificateIssued = "CertificateIssued"

	// ReasonAuthorityKeyLost: The Secret of an authority was deleted or replaced; a new authority replaces it in
	// stages.
	//
	// Do: Replace copied kubeconfigs within the overlap.
	//
	// Event: Warning, ApiServerCluster.
	ReasonAuthorityKeyLost = "AuthorityKeyLost"

	// ReasonTrustingNewAuthorities: New authorities were created; both the new and the old ones are trusted.
	//
	// Event: Normal, ApiServerCluster.
	ReasonTrustingNewAuthorities = "TrustingNewAuthorities"

	// ReasonReissuingCertificates: The new authorities sign all certificates.
	//
	// Do: Replace copied kubeconfigs within the overlap.
	//
	// Event: Normal, ApiServerCluster.
	ReasonReissuingCertificates = "ReissuingCertificates"

	// ReasonDroppingOldAuthorities: The old authorities are no longer trusted.
	//
	// Event: Normal, ApiServerCluster.
	ReasonDroppingOldAuthorities = "DroppingOldAuthorities"

	// ReasonAuthoritiesRotated: The authorities have been replaced.
	//
	// Event: Normal, ApiServerCluster.
	ReasonAuthoritiesRotated = "AuthoritiesRotated"

	// ReasonTrustingNewServiceAccountKey: A new key was created; tokens of both the new and the old key are accepted.
	//
	// Event: Normal, ApiServerCluster.
	ReasonTrustingNewServiceAccountKey = "TrustingNewServiceAccountKey"

	// ReasonSigningWithNewServiceAccountKey: The new key signs tokens.
	//
	// Event: Normal, ApiServerCluster.
	ReasonSigningWithNewServiceAccountKey = "SigningWithNewServiceAccountKey"

	// ReasonDroppingOldServiceAccountKey: Tokens of the old key become invalid.
	//
	// Event: Normal, ApiServerCluster.
	ReasonDroppingOldServiceAccountKey = "DroppingOldServiceAccountKey"

	// ReasonServiceAccountKeyRotated: The service-account key has been replaced.
	//
	// Event: Normal, ApiServerCluster.
	ReasonServiceAccountKeyRotated = "ServiceAccountKeyRotated"

	// ReasonTrustingNewEncryptionKey: API servers are prepared to read objects written with the new encryption
	// configuration.
	//
	// Event: Normal, ApiServerCluster.
	ReasonTrustingNewEncryptionKey = "TrustingNewEncryptionKey"

	// ReasonEncryptingWithNewKey: API servers encrypt with the new configuration, and stored objects are being
	// rewritten.
	//
	// Event: Normal, ApiServerCluster.
	ReasonEncryptingWithNewKey = "EncryptingWithNewKey"

	// ReasonDroppingOldEncryptionKey: The old encryption configuration is removed.
	//
	// Event: Normal, ApiServerCluster.
	ReasonDroppingOldEncryptionKey = "DroppingOldEncryptionKey"

	// ReasonEncryptionKeyRotated: The encryption configuration has been replaced.
	//
	// Event: Normal, ApiServerCluster.
	ReasonEncryptionKeyRotated = "EncryptionKeyRotated"
)

// Reasons of events about objects.
const (
	// ReasonSuccessfulCreate: A pod, a claim, a Deployment or a backup was created.
	//
	// Event: Normal, ApiServerCluster, ApiServerBackup and ApiServerBackupSchedule.
	ReasonSuccessfulCreate = "SuccessfulCreate"

	// ReasonSuccessfulUpdate: A Deployment was updated.
	//
	// Event: Normal, ApiServerCluster.
	ReasonSuccessfulUpdate = "SuccessfulUpdate"

	// ReasonSuccessfulDelete: A pod, a claim, a Deployment or an expired backup was deleted.
	//
	// Event: Normal, ApiServerCluster and ApiServerBackupSchedule.
	ReasonSuccessfulDelete = "SuccessfulDelete"

	// ReasonLabelsRestored: Labels of a pod or claim were removed; the operator restored them.
	//
	// Do: Find the client that removes them.
	//
	// Event: Warning, ApiServerCluster.
	ReasonLabelsRestored = "LabelsRestored"

	// ReasonVolumeResizing: A volume is being expanded to spec.storage.size.
	//
	// Event: Normal, ApiServerCluster.
	ReasonVolumeResizing = "VolumeResizing"

	// ReasonConfigurationUpdated: Changed configuration files are valid and take effect.
	//
	// Event: Normal, ApiServerCluster.
	ReasonConfigurationUpdated = "ConfigurationUpdated"

	// ReasonAPIServiceRegistered: An APIService was created.
	//
	// Event: Normal, ApiServerCluster.
	ReasonAPIServiceRegistered = "APIServiceRegistered"

	// ReasonAPIServiceUpdated: An APIService was updated.
	//
	// Event: Normal, ApiServerCluster.
	ReasonAPIServiceUpdated = "APIServiceUpdated"

	// ReasonAPIServiceDeleted: An APIService was deleted.
	//
	// Event: Normal, ApiServerCluster.
	ReasonAPIServiceDeleted = "APIServiceDeleted"
)

// Reasons of events about retained data.
const (
	// ReasonVolumesRetained: The volumes and keys of a deleted cluster stay, because spec.deletion.policy is Retain.
	//
	// Do: Adopt them with a new cluster, or delete them (docs/deletion.md).
	//
	// Event: Normal, ApiServerCluster.
	ReasonVolumesRetained = "VolumesRetained"

	// ReasonVolumesAdopted: The cluster continues with the volumes and keys of a deleted cluster.
	//
	// Event: Normal, ApiServerCluster.
	ReasonVolumesAdopted = "VolumesAdopted"

	// ReasonFinalBackupCreated: A backup was created before the deletion of the cluster; the deletion waits for it.
	//
	// Event: Normal, ApiServerCluster.
	ReasonFinalBackupCreated = "FinalBackupCreated"

	// ReasonFinalBackupSkipped: No final backup is taken: etcd never had data, or the namespace is being deleted.
	//
	// Event: Warning, ApiServerCluster.
	ReasonFinalBackupSkipped = "FinalBackupSkipped"
)

// Reasons of events about backups.
const (
	// ReasonUpgradeBackupCreated: A backup was created before an upgrade of etcd; the rollout waits for it.
	//
	// Event: Normal, ApiServerCluster.
	ReasonUpgradeBackupCreated = "UpgradeBackupCreated"

	// ReasonUpgradeBackupSkipped: No backup was created before an upgrade of etcd, because no destination is configured.
	//
	// Do: Set spec.maintenance.upgradeBackup.destination.
	//
	// Event: Normal, ApiServerCluster.
	ReasonUpgradeBackupSkipped = "UpgradeBackupSkipped"

	// ReasonBackupSkipped: A scheduled backup was not created; the message has the cause.
	//
	// Do: If it happens again, increase startingDeadlineSeconds, or schedule fewer backups.
	//
	// Event: Warning, ApiServerBackupSchedule.
	ReasonBackupSkipped = "BackupSkipped"

	// ReasonBackupRetried: An attempt failed, and the operator retries.
	//
	// Event: Warning, ApiServerBackup.
	ReasonBackupRetried = "BackupRetried"

	// ReasonDataDeletionFailed: The stored data of a deleted backup could not be deleted.
	//
	// Do: Correct the destination, or set deletionPolicy to Retain.
	//
	// Event: Warning, ApiServerBackup.
	ReasonDataDeletionFailed = "DataDeletionFailed"

	// ReasonDataRetained: The namespace is being deleted; the stored data of the backup is kept.
	//
	// Do: Delete the data yourself if you do not need it.
	//
	// Event: Warning, ApiServerBackup.
	ReasonDataRetained = "DataRetained"
)
