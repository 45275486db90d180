package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Maintenance limits when the operator restarts healthy replicas.
type Maintenance struct {
	// Windows are the periods in which the operator may restart healthy replicas, to roll out a spec or to replace
	// authorities. A rollout that is not finished at the end of a window continues in the next one. Repairs, scaling,
	// certificate renewals and recoveries do not wait for a window. Default: none, restarts are allowed at any time.
	// Example: [{"schedule": "0 2 * * SAT", "duration": "4h", "timeZone": "Europe/Berlin"}].
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Windows []MaintenanceWindow `json:"windows,omitempty"`

	// UpgradeBackup configures the backup before an upgrade to a new image.
	//
	// +optional
	UpgradeBackup UpgradeBackup `json:"upgradeBackup,omitzero"`
}

// UpgradeBackup configures the backup before an upgrade. The rollout waits for the backup. If the backup fails, delete
// the failed ApiServerBackup, and the operator creates another one.
type UpgradeBackup struct {
	// Policy selects the upgrades before which a backup is created. EtcdMinorVersion: upgrades to another minor version of
	// etcd, whose data the old image cannot read. The operator reads the version from the first member that runs the new
	// image; etcd changes its data only after all members run it. In a cluster with a single member, an image whose etcd
	// version is unknown counts as another minor version. Always: every change of the image. Never: no upgrades. Default:
	// EtcdMinorVersion. Example: Always.
	//
	// +optional
	// +kubebuilder:validation:Enum=EtcdMinorVersion;Always;Never
	Policy UpgradeBackupPolicy `json:"policy,omitempty"`

	// Destination is where the backup is stored. Default: the destination and the encryption of the cluster's first
	// ApiServerBackupSchedule, by name. Without a schedule, the operator records the event UpgradeBackupSkipped and
	// upgrades without a backup. Example: {"volume": {"claimName": "backups"}}.
	//
	// +optional
	Destination *BackupDestination `json:"destination,omitempty"`

	// Encryption encrypts the backup, if destination is set. Default: not encrypted.
	// Example: {"secretRef": {"name": "backup-recipients"}}.
	//
	// +optional
	Encryption *BackupEncryption `json:"encryption,omitempty"`
}

// UpgradeBackupPolicy selects the upgrades before which a backup is taken.
type UpgradeBackupPolicy string

// Policies of backups before upgrades.
const (
	BackupEtcdMinorVersion UpgradeBackupPolicy = "EtcdMinorVersion"
	BackupAlways           UpgradeBackupPolicy = "Always"
	BackupNever            UpgradeBackupPolicy = "Never"
)

// UpgradeStatus is the backup before an upgrade in progress.
type UpgradeStatus struct {
	// Image that the cluster is being upgraded to. Example: registry.example/quorate:0.2.0.
	Image string `json:"image"`

	// FormerImage is the image of pods that are created while the upgrade waits for the backup. Empty: unknown.
	// Example: registry.example/quorate:0.1.0.
	//
	// +optional
	FormerImage string `json:"formerImage,omitempty"`

	// BackupName is the name of the ApiServerBackup before the upgrade. Empty if there is no destination for it.
	// Example: demo-upgrade-0c5f2b1e-7.
	//
	// +optional
	BackupName string `json:"backupName,omitempty"`

	// Message is the step that the upgrade is waiting for, or the reason why no backup is created. Example: Waiting for
	// backup demo-upgrade-0c5f2b1e-7.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

// MaintenanceWindow is a period that recurs.
type MaintenanceWindow struct {
	// Schedule is when windows begin: a cron expression with five fields, or a macro such as @daily. Required.
	// Example: 0 2 * * SAT.
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

	// Duration of the window, as a duration of at least 10m. Required. Example: 4h.
	//
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10m')",message="must be at least 10m"
	Duration metav1.Duration `json:"duration"`
}
