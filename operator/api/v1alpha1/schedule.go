package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ApiServerBackupSchedule creates ApiServerBackups at the times of a cron schedule, and deletes old ones. Deleting a
// schedule keeps its backups.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=apiserverbackupschedules,singular=apiserverbackupschedule,shortName=asbs,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.template.clusterName`
// +kubebuilder:printcolumn:name="Schedule",type=string,JSONPath=`.spec.schedule`
// +kubebuilder:printcolumn:name="Suspend",type=boolean,JSONPath=`.spec.suspend`
// +kubebuilder:printcolumn:name="Active",type=integer,JSONPath=`.status.active`
// +kubebuilder:printcolumn:name="Last Success",type=date,JSONPath=`.status.lastSuccessfulTime`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 45",message="metadata.name becomes part of the names of backups: at most 45 lower-case letters, digits and -"
type ApiServerBackupSchedule struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the schedule and the template of its backups.
	Spec ApiServerBackupScheduleSpec `json:"spec"`

	// Status is the state that the operator last observed.
	Status ApiServerBackupScheduleStatus `json:"status,omitempty"`
}

// ApiServerBackupScheduleList is a list of ApiServerBackupSchedules.
//
// +kubebuilder:object:root=true
type ApiServerBackupScheduleList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ApiServerBackupSchedule `json:"items"`
}

// ApiServerBackupScheduleSpec is a schedule of backups. Fields with the same names as in CronJobs have the same
// meaning.
type ApiServerBackupScheduleSpec struct {
	// Schedule is a cron expression with five fields, or a macro such as @hourly. Required. Example: 0 */6 * * *.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.contains('TZ')",message="use timeZone instead of TZ or CRON_TZ"
	// +kubebuilder:validation:XValidation:rule="!self.startsWith('@every')",message="intervals are not supported; use fields, such as 0 */6 * * *"
	Schedule string `json:"schedule"`

	// TimeZone of the schedule, a name of the tz database. Default: Etc/UTC. Example: Europe/Berlin.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=64
	TimeZone string `json:"timeZone,omitempty"`

	// Suspend stops the creation of backups while it is true. Running backups continue, and retention applies. Default:
	// false. Example: true.
	//
	// +optional
	Suspend bool `json:"suspend,omitempty"`

	// StartingDeadlineSeconds is how long after a scheduled time the backup may still be created, in seconds, for example
	// if the operator was not running. Default: until the next scheduled time. Example: 1800.
	//
	// +optional
	// +kubebuilder:validation:Minimum=10
	StartingDeadlineSeconds *int64 `json:"startingDeadlineSeconds,omitempty"`

	// ConcurrencyPolicy selects what happens at a scheduled time while a backup of the schedule is not finished. Forbid:
	// the scheduled time is skipped. Replace: the unfinished backups are deleted. Allow: both run. Default: Forbid.
	// Example: Replace.
	//
	// +kubebuilder:default=Forbid
	// +kubebuilder:validation:Enum=Allow;Forbid;Replace
	// +optional
	ConcurrencyPolicy ConcurrencyPolicy `json:"concurrencyPolicy,omitempty"`

	// Retention limits the completed backups of the schedule. The newest one is always kept. Backups beyond the limits are
	// deleted, with their data if template.deletionPolicy is Delete. Default: all are kept. Example: {"count": 28}.
	//
	// +optional
	Retention BackupRetention `json:"retention,omitempty"`

	// FailedBackupsHistoryLimit is the number of failed backups to keep, 0 to 100. Default: 3. Example: 1.
	//
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	FailedBackupsHistoryLimit *int32 `json:"failedBackupsHistoryLimit,omitempty"`

	// Template is the spec of the backups. Its deletionPolicy should be Delete if retention has limits. Required.
	// Example: {"clusterName": "demo", "destination": {"volume": {"claimName": "backups"}}, "deletionPolicy": "Delete"}.
	Template BackupTemplate `json:"template"`
}

// BackupTemplate is the spec of the backups of a schedule. Changes apply to later backups.
type BackupTemplate struct {
	// ClusterName is the name of an ApiServerCluster with an embedded etcd, in the same namespace. Required. Example:
	// demo.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=45
	ClusterName string `json:"clusterName"`

	// Destination is where backups are stored. Required. Example: {"volume": {"claimName": "backups"}}.
	Destination BackupDestination `json:"destination"`

	// Encryption encrypts backups before they are stored. Default: not encrypted.
	// Example: {"secretRef": {"name": "backup-recipients"}}.
	//
	// +optional
	Encryption *BackupEncryption `json:"encryption,omitempty"`

	// DeletionPolicy selects what happens to the stored data when a backup is deleted: Retain or Delete. Default: Retain.
	// Example: Delete.
	//
	// +kubebuilder:default=Retain
	// +kubebuilder:validation:Enum=Retain;Delete
	// +optional
	DeletionPolicy BackupDeletionPolicy `json:"deletionPolicy,omitempty"`

	// TimeoutSeconds is the time after which an incomplete backup fails, in seconds. Default: 3600. Example: 600.
	//
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=10
	// +kubebuilder:validation:Maximum=86400
	// +optional
	TimeoutSeconds *int32 `json:"timeoutSeconds,omitempty"`

	// StartTimeoutSeconds is the time after which a backup fails if its pod does not start, or an object that it refers to
	// does not exist, in seconds. Default: 300. Example: 60.
	//
	// +kubebuilder:default=300
	// +kubebuilder:validation:Minimum=5
	// +kubebuilder:validation:Maximum=86400
	// +optional
	StartTimeoutSeconds *int32 `json:"startTimeoutSeconds,omitempty"`
}

// ConcurrencyPolicy selects what happens at a scheduled time while a backup is not finished.
type ConcurrencyPolicy string

// Concurrency policies.
const (
	AllowConcurrent   ConcurrencyPolicy = "Allow"
	ForbidConcurrent  ConcurrencyPolicy = "Forbid"
	ReplaceConcurrent ConcurrencyPolicy = "Replace"
)

// BackupRetention limits the completed backups of a schedule. A backup that exceeds either limit is deleted.
type BackupRetention struct {
	// Count is the number of completed backups to keep. Default: no limit. Example: 28.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	Count *int32 `json:"count,omitempty"`

	// Age is the time for which a completed backup is kept. Default: no limit. Example: 720h.
	//
	// +optional
	Age *metav1.Duration `json:"age,omitempty"`
}

// ScheduleReady is the condition type that is true while a schedule creates backups: it is valid and not suspended.
const ScheduleReady = "Ready"

// BackupReady is the condition type that is true while no scheduled backup is overdue or failed. An ApiServerCluster
// with schedules also has the condition, which is true if it is true for all of them.
const BackupReady = "BackupReady"

// ApiServerBackupScheduleStatus is the state that the operator last observed.
type ApiServerBackupScheduleStatus struct {
	// ObservedGeneration is the metadata.generation of the spec that the other fields describe. Example: 1.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Active is the number of backups that are not finished. Example: 1.
	Active int32 `json:"active,omitempty"`

	// LastScheduleTime is the last scheduled time at which a backup was created or skipped. Example: 2026-01-01T06:00:00Z.
	//
	// +optional
	LastScheduleTime *metav1.Time `json:"lastScheduleTime,omitempty"`

	// LastSuccessfulTime is the completion time of the newest completed backup that exists. Completion times in the
	// future, from a wrong clock, are ignored. Example: 2026-01-01T06:00:09Z.
	//
	// +optional
	LastSuccessfulTime *metav1.Time `json:"lastSuccessfulTime,omitempty"`

	// NextScheduleTime is the next scheduled time. Absent while the schedule is suspended. Example: 2026-01-01T12:00:00Z.
	//
	// +optional
	NextScheduleTime *metav1.Time `json:"nextScheduleTime,omitempty"`

	// Conditions: Ready and BackupReady.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}
