package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Maintenance limits when the operator restarts healthy replicas.
type Maintenance struct {
	// Windows are the periods in which healthy replicas are restarted, for a new spec or a replacement of authorities. A
	// rollout that is not finished at the end of a window continues in the next one. Repairs, scaling, renewals of
	// certificates and a recovery do not wait. Default: none, at any time.
	// Example: [{"schedule": "0 2 * * SAT", "duration": "4h", "timeZone": "Europe/Berlin"}].
	//
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	Windows []MaintenanceWindow `json:"windows,omitempty"`
}

// MaintenanceWindow is a period that recurs.
type MaintenanceWindow struct {
	// Schedule of the beginnings: a cron expression with five fields, or a macro such as @daily. Required.
	// Example: 0 2 * * SAT.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:XValidation:rule="!self.contains('TZ')",message="use timeZone instead of TZ or CRON_TZ"
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
