package v1alpha1

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Recovery requests that etcd continues after the loss of its quorum, without the writes that only the lost members
// have. The operator never starts a recovery without a request.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.member) && has(self.from))",message="member and from are mutually exclusive"
// +kubebuilder:validation:XValidation:rule="!has(self.encryption) || has(self.from)",message="encryption requires from"
type Recovery struct {
	// RequestID identifies the request. Each request takes effect once; to request another recovery, choose another ID. A
	// request made while etcd has a quorum is recorded as not needed and has no later effect. Required.
	// Example: "2026-01-31".
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	RequestID string `json:"requestID"`

	// Member is the name of the member to recover from. Default: the reachable member with the newest revision.
	// Example: demo-2.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Member string `json:"member,omitempty"`

	// From is the backup to recover from, instead of the data of a member. Default: unset. Example: {"backupName":
	// "monday"}.
	//
	// +optional
	From *RestoreSource `json:"from,omitempty"`

	// Encryption has the age identities that decrypt the backup. Required if the backup is encrypted. Default: none.
	// Example: {"secretRef": {"name": "backup-keys"}}.
	//
	// +optional
	Encryption *BackupEncryption `json:"encryption,omitempty"`
}

// Recovered is the condition type that is true once the last request in spec.recovery is handled. It is absent without
// a request.
const Recovered = "Recovered"

// RecoveryStage is the progress of a recovery.
//
// +kubebuilder:validation:Enum=Stopping;Restoring;Starting;Completed;NotNeeded
type RecoveryStage string

// The stages of a recovery.
const (
	// RecoveryStopping deletes all pods. All data is kept.
	RecoveryStopping RecoveryStage = "Stopping"
	// RecoveryRestoring prepares the data of the only member.
	RecoveryRestoring RecoveryStage = "Restoring"
	// RecoveryStarting starts the only member. The volumes of the other members are deleted once the only member serves.
	RecoveryStarting RecoveryStage = "Starting"
	// RecoveryCompleted is the final stage: etcd has a quorum with its only member. Then further members join.
	RecoveryCompleted RecoveryStage = "Completed"
	// RecoveryNotNeeded is the final stage of a request that was made while etcd had a quorum.
	RecoveryNotNeeded RecoveryStage = "NotNeeded"
)

// RecoveryStatus is the progress of a recovery. The operator writes it before each step, so that it can resume after a
// crash.
type RecoveryStatus struct {
	// Request is a copy of spec.recovery at the beginning of the recovery. Only a request with another requestID replaces
	// it.
	Request Recovery `json:"request"`

	// Stage of the recovery: Stopping, Restoring, Starting, Completed or NotNeeded. Example: Restoring.
	Stage RecoveryStage `json:"stage"`

	// Member is the only member that etcd continues with. Example: demo-2.
	//
	// +optional
	Member string `json:"member,omitempty"`

	// Revision is the resourceVersion of the newest recovered change. Later changes are lost. New revisions begin
	// 1000000000 above it. Example: 12345.
	//
	// +optional
	Revision int64 `json:"revision,omitempty"`

	// Verification is the evidence that the recovered backup was not replaced: ManifestDigest, Signature, SnapshotDigest
	// or None, as in status.restore. Empty if etcd continues with the data of a member. Example: ManifestDigest.
	//
	// +optional
	Verification string `json:"verification,omitempty"`

	// AcknowledgedRevision is the newest resourceVersion that a member is known to have reached before the recovery. If it
	// is higher than revision, the changes between the two are lost. Example: 12400.
	//
	// +optional
	AcknowledgedRevision int64 `json:"acknowledgedRevision,omitempty"`

	// Survivors are the members that were reachable before the recovery, and their newest revisions.
	// Example: ["demo-2: revision 12345"].
	//
	// +optional
	// +listType=atomic
	Survivors []string `json:"survivors,omitempty"`

	// StartedAt is the time at which the recovery began. Example: 2026-01-01T00:00:00Z.
	StartedAt metav1.Time `json:"startedAt"`

	// CompletedAt is the time at which the recovery ended. Example: 2026-01-01T00:00:30Z.
	//
	// +optional
	CompletedAt *metav1.Time `json:"completedAt,omitempty"`

	// Reason is a CamelCase word for message. Example: RecoveryFailed.
	//
	// +optional
	Reason string `json:"reason,omitempty"`

	// Message describes why the current stage does not complete. Example: "recover /var/lib/quorate/etcd: there is no
	// data".
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// Source returns a description of the data that etcd continues with.
func (r *RecoveryStatus) Source() string {
	switch from := r.Request.From; {
	case from == nil:
		return r.Member
	case from.Location != nil:
		return "the backup " + from.Location.Path
	default:
		return "backup " + from.BackupName
	}
}

// RecoveryRequested reports whether spec.recovery has a request that the status does not contain yet.
func (c *ApiServerCluster) RecoveryRequested() bool {
	return c.Spec.Recovery != nil &&
		(c.Status.Recovery == nil || c.Status.Recovery.Request.RequestID != c.Spec.Recovery.RequestID)
}

// Recovering reports whether a recovery is in any of the given stages.
func (c *ApiServerCluster) Recovering(stages ...RecoveryStage) bool {
	return c.Status.Recovery != nil && slices.Contains(stages, c.Status.Recovery.Stage)
}
