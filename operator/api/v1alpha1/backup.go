package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ApiServerBackup is one backup of the embedded etcd of an ApiServerCluster. The operator creates the backup once, and
// records the result in the status.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=apiserverbackups,singular=apiserverbackup,shortName=asb,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterName`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Size",type=integer,JSONPath=`.status.sizeBytes`
// +kubebuilder:printcolumn:name="Revision",type=integer,JSONPath=`.status.revision`
// +kubebuilder:printcolumn:name="Completed",type=date,JSONPath=`.status.completionTime`
// +kubebuilder:printcolumn:name="Location",type=string,JSONPath=`.status.location`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 57",message="metadata.name becomes part of pod names: at most 57 lower-case letters, digits and -"
type ApiServerBackup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec describes the backup. It is immutable except for deletionPolicy.
	Spec ApiServerBackupSpec `json:"spec"`

	// Status is the progress and the result of the backup.
	Status ApiServerBackupStatus `json:"status,omitempty"`
}

// ApiServerBackupList is a list of ApiServerBackups.
//
// +kubebuilder:object:root=true
type ApiServerBackupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ApiServerBackup `json:"items"`
}

// ApiServerBackupSpec describes a backup.
//
// +kubebuilder:validation:XValidation:rule="self.clusterName == oldSelf.clusterName && self.destination == oldSelf.destination && has(self.encryption) == has(oldSelf.encryption) && (!has(self.encryption) || self.encryption == oldSelf.encryption)",message="a backup is immutable except for deletionPolicy; create another one"
type ApiServerBackupSpec struct {
	// ClusterName is the name of an ApiServerCluster with an embedded etcd, in the same namespace. Required. Example:
	// demo.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=45
	ClusterName string `json:"clusterName"`

	// Destination is where the backup is stored. Required.
	// Example: {"volume": {"claimName": "backups"}}.
	Destination BackupDestination `json:"destination"`

	// Encryption encrypts the backup before it is stored. Only encrypted backups contain the key of service-account
	// tokens. Default: not encrypted. Example: {"secretRef": {"name": "backup-recipients"}}.
	//
	// +optional
	Encryption *BackupEncryption `json:"encryption,omitempty"`

	// DeletionPolicy selects what happens to the stored data when the object is deleted. Retain: the data is kept. Delete:
	// the data is deleted first. Default: Retain. Example: Delete.
	//
	// +kubebuilder:default=Retain
	// +kubebuilder:validation:Enum=Retain;Delete
	// +optional
	DeletionPolicy BackupDeletionPolicy `json:"deletionPolicy,omitempty"`

	// TimeoutSeconds is the time after which an incomplete backup fails, in seconds. It includes retries and the time
	// spent waiting for a healthy cluster. Default: 3600. Example: 600.
	//
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	// +optional
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// StartTimeoutSeconds is the time in seconds after which a backup fails if its pod has not started, or if a Secret or
	// PersistentVolumeClaim that the backup names does not exist. Default: 300. Example: 60.
	//
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=86400
	// +optional
	StartTimeoutSeconds *int32 `json:"startTimeoutSeconds,omitempty"`
}

// BackupDeletionPolicy selects what happens to the data of a deleted backup.
type BackupDeletionPolicy string

// Deletion policies.
const (
	BackupRetain BackupDeletionPolicy = "Retain"
	BackupDelete BackupDeletionPolicy = "Delete"
)

// BackupDestination is either a volume or an S3 bucket.
//
// +kubebuilder:validation:XValidation:rule="has(self.volume) != has(self.s3)",message="destination is either volume or s3"
type BackupDestination struct {
	// Volume stores backups in a volume. Default: unset. Example: {"claimName": "backups"}.
	//
	// +optional
	Volume *VolumeDestination `json:"volume,omitempty"`

	// S3 stores backups in S3-compatible storage. Default: unset.
	// Example: {"endpoint": "https://s3.example.org", "bucket": "backups", "credentialsSecretRef": {"name": "s3"}}.
	//
	// +optional
	S3 *S3Destination `json:"s3,omitempty"`
}

// VolumeDestination is a directory in a volume.
type VolumeDestination struct {
	// ClaimName is the name of a PersistentVolumeClaim in the same namespace. Required. Example: backups.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	ClaimName string `json:"claimName"`

	// Path is the directory in the volume that contains backups, without leading slash. Default: the root of the volume.
	// Example: etcd.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$`
	Path string `json:"path,omitempty"`
}

// S3Destination is a prefix in an S3 bucket.
type S3Destination struct {
	// Endpoint is the URL of the storage. Required. Example: https://s3.eu-central-1.amazonaws.com.
	//
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https?://[^/?#@]+/?$`
	Endpoint string `json:"endpoint"`

	// Bucket that contains backups. The operator does not create it. Required. Example: backups.
	//
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=63
	Bucket string `json:"bucket"`

	// Prefix of the objects' keys, without leading slash. Default: none. Example: clusters.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*$`
	Prefix string `json:"prefix,omitempty"`

	// Region of the bucket. Default: the storage reports it. Example: eu-central-1.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Region string `json:"region,omitempty"`

	// PathStyle puts the bucket into the path of URLs instead of the host name, as most S3 implementations except AWS
	// require. Default: false. Example: true.
	//
	// +optional
	PathStyle bool `json:"pathStyle,omitempty"`

	// CredentialsSecretRef names a Secret of the same namespace with the keys accessKeyID, secretAccessKey and,
	// optionally, sessionToken. Required. Example: {"name": "s3"}.
	CredentialsSecretRef corev1.LocalObjectReference `json:"credentialsSecretRef"`

	// CASecretRef names a Secret of the same namespace whose key ca.crt is the authority of the endpoint's certificate.
	// Default: the authorities of the image. Example: {"name": "s3-ca"}.
	//
	// +optional
	CASecretRef *corev1.LocalObjectReference `json:"caSecretRef,omitempty"`
}

// BackupEncryption encrypts backups in the format of age (https://age-encryption.org).
type BackupEncryption struct {
	// SecretRef names a Secret of the same namespace. Backups need its key recipients: age recipients, one per line.
	// Restores need its key identities: the age identities of one recipient. Keep them outside the hosting cluster.
	// Required. Example: {"name": "backup-keys"}.
	SecretRef corev1.LocalObjectReference `json:"secretRef"`
}

// BackupPhase is the progress of a backup.
type BackupPhase string

// Phases of a backup. Completed and Failed are final.
const (
	BackupPending   BackupPhase = "Pending"
	BackupRunning   BackupPhase = "Running"
	BackupCompleted BackupPhase = "Completed"
	BackupFailed    BackupPhase = "Failed"
)

// BackupComplete is the condition type that is true when a backup is stored and verified, and false when it failed.
const BackupComplete = "Complete"

// ApiServerBackupStatus is the progress and the result of a backup.
type ApiServerBackupStatus struct {
	// Phase is Pending while the backup waits for its cluster, Running, Completed once it is stored and verified, or
	// Failed. Example: Completed.
	//
	// +kubebuilder:validation:Enum=Pending;Running;Completed;Failed
	// +optional
	Phase BackupPhase `json:"phase,omitempty"`

	// StartTime is the time at which the first attempt began. Example: 2026-01-01T00:00:00Z.
	//
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// CompletionTime is the time at which the backup was complete or failed. Example: 2026-01-01T00:00:09Z.
	//
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// Attempts is the number of attempts that were started, at most 3. Example: 1.
	//
	// +optional
	Attempts int32 `json:"attempts,omitempty"`

	// Path of the backup in its volume or bucket. Example: default/demo/monday.
	//
	// +optional
	Path string `json:"path,omitempty"`

	// Location is the URL of the backup. Example: s3://backups/default/demo/monday.
	//
	// +optional
	Location string `json:"location,omitempty"`

	// SnapshotTime is the time before which every acknowledged write is in the backup. Example: 2026-01-01T00:00:02Z.
	//
	// +optional
	SnapshotTime *metav1.Time `json:"snapshotTime,omitempty"`

	// SizeBytes is the size of the stored snapshot, in bytes. Example: 25165824.
	//
	// +optional
	SizeBytes int64 `json:"sizeBytes,omitempty"`

	// SHA256 of the stored snapshot, in hexadecimal. Example: 9f86d081884c7d65...
	//
	// +optional
	SHA256 string `json:"sha256,omitempty"`

	// ManifestSHA256 is the SHA-256 of the stored file backup.json, in hexadecimal. A restore that names this object
	// verifies it. Empty if the image is of an earlier release. Example: 9f86d081884c7d65...
	//
	// +optional
	ManifestSHA256 string `json:"manifestSHA256,omitempty"`

	// VerificationKey verifies the signature of the stored backup. It is not secret. Keep a copy outside the hosting
	// cluster to restore from a location if this object is lost. Empty if the backup is not signed, because the image is
	// of an earlier release. Example: "ed25519:GZpDmBFDPkVXfBqCCsNkWLK4R1mLDOBjGDCsbnBSmXQ=".
	//
	// +optional
	VerificationKey string `json:"verificationKey,omitempty"`

	// Revision is the resourceVersion of the newest change in the backup. Example: 12345.
	//
	// +optional
	Revision int64 `json:"revision,omitempty"`

	// Keys is the number of keys in the snapshot, including the API server's internal keys. Example: 421.
	//
	// +optional
	Keys int64 `json:"keys,omitempty"`

	// Member is the client URL of the member that the snapshot was taken from.
	// Example: https://demo-1.demo-members.default.svc:2379.
	//
	// +optional
	Member string `json:"member,omitempty"`

	// Encrypted is true if the stored snapshot is encrypted. Example: true.
	//
	// +optional
	Encrypted bool `json:"encrypted,omitempty"`

	// EncryptionKeys are the providers and keys that encrypt objects inside the snapshot. These objects cannot be read
	// after a restore without them. Example: ["aescbc:v1:key1"].
	//
	// +optional
	// +listType=atomic
	EncryptionKeys []string `json:"encryptionKeys,omitempty"`

	// Conditions: Complete.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// Finished reports whether a backup is complete or has failed.
func (b *ApiServerBackup) Finished() bool {
	return b.Status.Phase == BackupCompleted || b.Status.Phase == BackupFailed
}
