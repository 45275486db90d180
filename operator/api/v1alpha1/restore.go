package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Restore creates a cluster from a backup instead of an empty etcd.
type Restore struct {
	// From is the backup. Required. Example: {"backupName": "monday"}.
	From RestoreSource `json:"from"`

	// Encryption has the age identities that decrypt the backup. Required if the backup is encrypted. Default: none.
	// Example: {"secretRef": {"name": "backup-keys"}}.
	//
	// +optional
	Encryption *BackupEncryption `json:"encryption,omitempty"`

	// ServiceAccountKeySecretRef names a Secret of the same namespace with the keys service-account.pub and
	// service-account.key of the original cluster, for a backup that does not contain them. Default: the key in the
	// backup, or the Secret of the original cluster if it still exists in the namespace. Example: {"name":
	// "demo-service-account"}.
	//
	// +optional
	ServiceAccountKeySecretRef *corev1.LocalObjectReference `json:"serviceAccountKeySecretRef,omitempty"`

	// EncryptionKeysSecretRef names a Secret of the same namespace with the key state.json: a copy of the Secret
	// <cluster>-encryption-keys of the original cluster, for a backup that does not contain it. Only needed if objects in
	// the backup are encrypted at rest. Default: the keys in the backup, or the Secret of the original cluster if it still
	// exists in the namespace. Example: {"name": "demo-encryption-keys"}.
	//
	// +optional
	EncryptionKeysSecretRef *corev1.LocalObjectReference `json:"encryptionKeysSecretRef,omitempty"`

	// ServiceAccountKeyPolicy selects what happens if the key of service-account tokens is missing. Require: the cluster
	// does not start. Replace: it starts with a new key, and all tokens of the original cluster are invalid. Default:
	// Require. Example: Replace.
	//
	// +kubebuilder:default=Require
	// +kubebuilder:validation:Enum=Require;Replace
	// +optional
	ServiceAccountKeyPolicy ServiceAccountKeyPolicy `json:"serviceAccountKeyPolicy,omitempty"`
}

// ServiceAccountKeyPolicy selects what happens if the key of service-account tokens is missing.
type ServiceAccountKeyPolicy string

// Policies for a missing service-account key.
const (
	RequireServiceAccountKey ServiceAccountKeyPolicy = "Require"
	ReplaceServiceAccountKey ServiceAccountKeyPolicy = "Replace"
)

// RestoreSource is either an ApiServerBackup or the location of a backup.
//
// +kubebuilder:validation:XValidation:rule="has(self.backupName) != has(self.location)",message="from is either backupName or location"
type RestoreSource struct {
	// BackupName is the name of a completed ApiServerBackup in the same namespace. Default: unset. Example: monday.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=57
	BackupName string `json:"backupName,omitempty"`

	// Location is where the backup is stored. Use it if the ApiServerBackup does not exist, for example in another hosting
	// cluster. Default: unset.
	// Example: {"destination": {"volume": {"claimName": "backups"}}, "path": "default/demo/monday"}.
	//
	// +optional
	Location *BackupLocation `json:"location,omitempty"`

	// Verification selects whether a backup that may have been replaced in its volume or bucket is restored. Require: the
	// backup is restored only if it has the digest in the status of its ApiServerBackup, or the verificationKey or
	// manifestSHA256 of the location. Skip: the backup is restored without verification. Default: Require. Example: Skip.
	//
	// +kubebuilder:validation:Enum=Require;Skip
	// +optional
	Verification VerificationPolicy `json:"verification,omitempty"`
}

// VerificationPolicy selects whether a backup that may have been replaced is restored.
type VerificationPolicy string

// Verification policies. An empty policy is RequireVerification.
const (
	RequireVerification VerificationPolicy = "Require"
	SkipVerification    VerificationPolicy = "Skip"
)

// Unverified is the verification in the status if the verification was skipped.
const Unverified = "None"

// BackupLocation is the place where a backup is stored, with the key or digest that shows that the backup was not
// replaced there.
type BackupLocation struct {
	// Destination is the volume or the bucket. Its path or prefix is not used. Required.
	// Example: {"volume": {"claimName": "backups"}}.
	Destination BackupDestination `json:"destination"`

	// Path of the backup in the volume or bucket, as in the status of its ApiServerBackup. Required.
	// Example: default/demo/monday.
	//
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$`
	Path string `json:"path"`

	// VerificationKey must have signed the backup for this path. An older backup of the same path has a valid signature,
	// too. It is in the status of the ApiServerBackups of a cluster, and in the Secret <cluster>-backup-signing. Default:
	// none. Example: "ed25519:GZpDmBFDPkVXfBqCCsNkWLK4R1mLDOBjGDCsbnBSmXQ=".
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^ed25519:[A-Za-z0-9+/]{43}=$`
	VerificationKey string `json:"verificationKey,omitempty"`

	// ManifestSHA256 is the SHA-256 that the file backup.json must have, in hexadecimal, as in the status of the
	// ApiServerBackup. Default: none. Example: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08.
	//
	// +optional
	// +kubebuilder:validation:Pattern=`^[0-9a-f]{64}$`
	ManifestSHA256 string `json:"manifestSHA256,omitempty"`
}

// Restored is the condition type that is true once the cluster's backup is restored. It is absent without spec.restore.
const Restored = "Restored"

// RestoreStatus is the result of a restore.
type RestoreStatus struct {
	// Completed is true when the data is restored and all keys are present. Then the cluster starts. Default: false.
	// Example: true.
	Completed bool `json:"completed,omitempty"`

	// Location is the URL of the backup. Example: s3://backups/default/demo/monday.
	//
	// +optional
	Location string `json:"location,omitempty"`

	// SnapshotTime is the time up to which every acknowledged write of the original cluster is restored.
	// Example: 2026-01-01T00:00:02Z.
	//
	// +optional
	SnapshotTime *metav1.Time `json:"snapshotTime,omitempty"`

	// Verification is the evidence that the backup was not replaced. ManifestDigest, Signature: the complete backup is
	// verified. SnapshotDigest: only the objects are verified, because the backup is of an earlier release. None:
	// verification was skipped. Example: ManifestDigest.
	//
	// +optional
	Verification string `json:"verification,omitempty"`

	// Revision is the resourceVersion of the newest change in the backup. New revisions begin 1000000000 above it, so that
	// clients never see a revision of the original cluster twice. Example: 12345.
	//
	// +optional
	Revision int64 `json:"revision,omitempty"`

	// Message is why the restore is not completed. Example: the backup is encrypted: identities to decrypt it are
	// required.
	//
	// +optional
	Message string `json:"message,omitempty"`

	// Reason is a CamelCase word for message. Example: RestoreFailed.
	//
	// +optional
	Reason string `json:"reason,omitempty"`
}
