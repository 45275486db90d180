package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types.
const (
	// Available is true when at least one replica is ready and etcd has a quorum.
	Available = "Available"
	// Progressing is true while the operator changes the cluster or waits for a change to take effect.
	Progressing = "Progressing"
	// Degraded is true when the operator cannot repair a problem, or has not repaired it yet.
	Degraded = "Degraded"
	// EtcdQuorum is true when the embedded etcd has a quorum. It is absent with an external etcd.
	EtcdQuorum = "EtcdQuorum"
	// CertificatesValid is true when no certificate has expired or is overdue for renewal, and the certificates and
	// authorities that the spec refers to are valid.
	CertificatesValid = "CertificatesValid"
	// CredentialsRotating is true while certificate authorities or service-account keys are being replaced.
	CredentialsRotating = "CredentialsRotating"
	// APIServicesAvailable is true when all APIServices that the operator manages are available. It is absent without any.
	APIServicesAvailable = "APIServicesAvailable"
	// Paused is true until the time in PausedUntilAnnotation. It is absent without the annotation.
	Paused = "Paused"
)

// ApiServerClusterStatus is the state that the operator last observed.
type ApiServerClusterStatus struct {
	// ObservedGeneration is the metadata.generation of the spec that the other fields describe. Example: 3.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Replicas is the number of API server pods, including terminating ones. Example: 3.
	Replicas int32 `json:"replicas,omitempty"`

	// ReadyReplicas is the number of API server pods that are ready. Example: 3.
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`

	// Ready is the number of ready replicas and the number of desired replicas, separated by a slash. Example: 2/3.
	Ready string `json:"ready,omitempty"`

	// Voters is the number of voting members of the embedded etcd. Absent with an external etcd. Example: 3.
	Voters int32 `json:"voters,omitempty"`

	// Selector of the API server pods, for the scale subresource. Example: quorate.dev/cluster=demo.
	Selector string `json:"selector,omitempty"`

	// Version of Kubernetes that the API servers report. Example: v1.37.2.
	Version string `json:"version,omitempty"`

	// EffectiveVersion is the newest version of Kubernetes whose APIs and features the API servers have served. It is
	// older than version as long as emulated-version in spec.extraArgs has always held an upgrade back; until then, an
	// image of the older version can be set again. Example: v1.36.0.
	EffectiveVersion string `json:"effectiveVersion,omitempty"`

	// Endpoint is the URL for clients: the URL of the load balancer if the Service has one, otherwise the URL of the
	// Service. Example: https://demo.default.svc:6443.
	Endpoint string `json:"endpoint,omitempty"`

	// Image that the replicas run. Without spec.image, this is the image that the cluster was created with.
	// Example: registry.example/quorate:0.1.0.
	Image string `json:"image,omitempty"`

	// Members are the members of the embedded etcd, by name. Empty with an external etcd.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	Members []MemberStatus `json:"members,omitempty"`

	// Membership is the progress of etcd membership changes. The operator updates it before each step, so that it can
	// resume after a crash. Absent with an external etcd.
	//
	// +optional
	Membership *Membership `json:"membership,omitempty"`

	// Restore is the progress of spec.restore.
	//
	// +optional
	Restore *RestoreStatus `json:"restore,omitempty"`

	// Recovery is the progress of the last request in spec.recovery.
	//
	// +optional
	Recovery *RecoveryStatus `json:"recovery,omitempty"`

	// Rotations are the replacements of authorities and keys in progress.
	//
	// +optional
	Rotations *Rotations `json:"rotations,omitempty"`

	// Defragmentation is the defragmentation in progress.
	//
	// +optional
	Defragmentation *DefragmentationStatus `json:"defragmentation,omitempty"`

	// Upgrade is the backup before the change of the image in progress. Absent if none is needed.
	//
	// +optional
	Upgrade *UpgradeStatus `json:"upgrade,omitempty"`

	// Adoption is the completed adoption of spec.adopt.
	//
	// +optional
	Adoption *AdoptionStatus `json:"adoption,omitempty"`

	// Deletion is the progress of the deletion. Absent until the operator begins to delete the cluster's objects.
	//
	// +optional
	Deletion *DeletionStatus `json:"deletion,omitempty"`

	// APIServices are the APIServices that the operator manages, by name.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	APIServices []APIServiceStatus `json:"apiServices,omitempty"`

	// Companions are the companions of the API servers, by name.
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	Companions []CompanionStatus `json:"companions,omitempty"`

	// Conditions of the cluster: Available, Progressing, Degraded, EtcdQuorum, EtcdSpaceAvailable, CertificatesValid,
	// CredentialsRotating, APIServicesAvailable, CompanionsAvailable, BackupReady, Paused, Restored, Recovered and
	// Deleting.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MemberStatus is the state of one member of the embedded etcd.
type MemberStatus struct {
	// Name of the member and of its pod and PersistentVolumeClaim. Example: demo-0.
	Name string `json:"name"`

	// ID of the member in etcd, in hexadecimal. Example: 8e9e05c52164694d.
	ID string `json:"id,omitempty"`

	// Role of the member: leader, voter or learner. Example: voter.
	//
	// +kubebuilder:validation:Enum=leader;voter;learner
	Role string `json:"role,omitempty"`

	// Ready is true when the member is healthy and its API server is ready. Example: true.
	Ready bool `json:"ready"`

	// Version of etcd that the member runs. Absent while the member is unreachable. Example: 3.6.4.
	Version string `json:"version,omitempty"`

	// DBSize is the size of the member's database, in bytes. Example: 25165824.
	DBSize int64 `json:"dbSize,omitempty"`

	// LastDefragmentTime is the time at which the operator last defragmented the member's database.
	// Example: 2026-01-01T00:00:00Z.
	//
	// +optional
	LastDefragmentTime *metav1.Time `json:"lastDefragmentTime,omitempty"`

	// Volume is the UID of the PersistentVolumeClaim on which the member has started. A claim with another UID does not
	// have the member's data. Example: 6f1d0c0e-8a54-4d3c-9d0f-2a3b4c5d6e7f.
	//
	// +optional
	Volume string `json:"volume,omitempty"`

	// Acknowledged is a state that the member is known to have reached. It is updated every five minutes, and when the
	// quorum is lost. A member whose data is older does not start.
	//
	// +optional
	Acknowledged *Acknowledged `json:"acknowledged,omitempty"`

	// UnhealthySince is the time at which the member was first observed unhealthy. Absent while it is healthy.
	// Example: 2026-01-01T00:00:00Z.
	//
	// +optional
	UnhealthySince *metav1.Time `json:"unhealthySince,omitempty"`
}

// Acknowledged is a state that a member of the embedded etcd has reached.
type Acknowledged struct {
	// Revision is the resourceVersion of the newest change that the member had applied. Example: 12345.
	Revision int64 `json:"revision"`

	// Index of the newest entry of the raft log that the member had applied. Example: 23456.
	Index int64 `json:"index"`

	// Term of raft that the member had reached. Example: 3.
	Term int64 `json:"term"`

	// Time of the observation. Example: 2026-01-01T00:00:00Z.
	Time metav1.Time `json:"time"`
}

// Membership is the progress of etcd membership changes.
type Membership struct {
	// InitialMembers are the names of the members that bootstrap etcd. Empty once bootstrapped is true.
	// Example: ["demo-0", "demo-1", "demo-2"].
	//
	// +optional
	// +listType=atomic
	InitialMembers []string `json:"initialMembers,omitempty"`

	// Bootstrapped is true once the initial members have formed a quorum. From then on members join one at a time, as
	// learners. Default: false. Example: true.
	Bootstrapped bool `json:"bootstrapped,omitempty"`

	// NextOrdinal is the ordinal of the next member. Ordinals are never reused. Default: 0. Example: 3.
	NextOrdinal int32 `json:"nextOrdinal,omitempty"`

	// JoiningMember is the name of the member that is being added. Empty while no member is being added. Example: demo-3.
	//
	// +optional
	JoiningMember string `json:"joiningMember,omitempty"`

	// JoiningSince is the time at which joiningMember was set. The operator removes a learner that has not caught up after
	// ten minutes. Example: 2026-01-01T00:00:00Z.
	//
	// +optional
	JoiningSince *metav1.Time `json:"joiningSince,omitempty"`
}
