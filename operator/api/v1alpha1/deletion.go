package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Deletion configures what happens when the ApiServerCluster is deleted. It can be changed while a deletion waits.
type Deletion struct {
	// Protected refuses the deletion of the cluster: the ValidatingAdmissionPolicy that is installed with the operator
	// rejects it. Without the policy, the deletion is accepted, but the cluster keeps running until this field is false.
	// It does not protect a cluster from the deletion of its namespace. Default: false. Example: true.
	//
	// +optional
	Protected bool `json:"protected,omitempty"`

	// Policy selects what happens to the data of a deleted cluster. Delete: its volumes and Secrets are deleted. Retain:
	// the volumes of the members, and the Secrets with certificate authorities, service-account keys and encryption keys,
	// stay until you delete them, or until a new cluster with the same name adopts them. Volumes of members that leave the
	// cluster earlier are always deleted. Default: Delete. Example: Retain.
	//
	// +optional
	// +kubebuilder:validation:Enum=Delete;Retain
	// +kubebuilder:validation:MaxLength=16
	Policy DeletionPolicy `json:"policy,omitempty"`

	// FinalBackup is a backup that is taken when the deletion is requested. Nothing is deleted before it is completed.
	// Default: unset, no backup. Example: {"destination": {"volume": {"claimName": "backups"}}}.
	//
	// +optional
	FinalBackup *FinalBackup `json:"finalBackup,omitempty"`
}

// DeletionPolicy selects what happens to the data of a deleted cluster.
type DeletionPolicy string

// Policies of the data of deleted clusters.
const (
	DeleteData DeletionPolicy = "Delete"
	RetainData DeletionPolicy = "Retain"
)

// FinalBackup configures the backup before the deletion of a cluster.
type FinalBackup struct {
	// Destination is where the backup is stored. Its claim or Secrets must exist until the backup is completed. Required.
	// Example: {"volume": {"claimName": "backups"}}.
	Destination BackupDestination `json:"destination"`

	// Encryption encrypts the backup. Only encrypted backups contain the key of service-account tokens and the keys of
	// spec.encryption. Default: not encrypted. Example: {"secretRef": {"name": "backup-recipients"}}.
	//
	// +optional
	Encryption *BackupEncryption `json:"encryption,omitempty"`

	// TimeoutSeconds is the time after which an incomplete backup fails, in seconds. Default: 3600. Example: 600.
	//
	// +optional
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// StartTimeoutSeconds is the time after which a backup fails if its pod does not start, or an object that it refers to
	// does not exist, in seconds. Default: 300. Example: 60.
	//
	// +optional
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=86400
	StartTimeoutSeconds *int32 `json:"startTimeoutSeconds,omitempty"`
}

// Adoption names a deleted cluster whose volumes and keys were retained.
type Adoption struct {
	// ClusterUID is the metadata.uid of the deleted cluster, which had the same name and namespace: the value of the label
	// quorate.dev/retained-from of the retained objects. Required. Example: 0c5f2b1e-9d1c-4c8e-8a53-0d4f4c9f7b11.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ClusterUID string `json:"clusterUID"`
}

// AdoptionStatus is a completed adoption.
type AdoptionStatus struct {
	// ClusterUID is the metadata.uid of the deleted cluster whose objects were adopted.
	// Example: 0c5f2b1e-9d1c-4c8e-8a53-0d4f4c9f7b11.
	ClusterUID string `json:"clusterUID"`

	// Time of the adoption. Example: 2026-01-01T00:00:00Z.
	Time metav1.Time `json:"time"`
}

// DeletionStatus is the progress of a deletion.
type DeletionStatus struct {
	// StartTime is the time at which the operator began to delete the cluster's objects. From then on nothing stops the
	// deletion, not even spec.deletion.protected. Example: 2026-01-01T00:00:00Z.
	StartTime metav1.Time `json:"startTime"`
}

// Deleting is the condition type that is true while the objects of a deleted cluster are being deleted, and false while
// the deletion waits. It is absent unless the deletion was requested.
const Deleting = "Deleting"

// RetainsData reports whether the data of the cluster stays when the cluster is deleted.
func (c *ApiServerCluster) RetainsData() bool { return c.Spec.Deletion.Policy == RetainData }

// DeletionStarted reports whether the operator has begun to delete the objects of the cluster.
func (c *ApiServerCluster) DeletionStarted() bool { return c.Status.Deletion != nil }

// Adopted reports whether the cluster has adopted the objects that spec.adopt names, or names none.
func (c *ApiServerCluster) Adopted() bool {
	return c.Spec.Adopt == nil || c.Status.Adoption != nil && c.Status.Adoption.ClusterUID == c.Spec.Adopt.ClusterUID
}
