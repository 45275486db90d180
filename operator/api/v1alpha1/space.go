package v1alpha1

import (
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Defragmentation configures when the operator defragments the databases of the members. It defragments one member at a
// time, followers before the leader, which first transfers leadership, and only while all members are healthy and no
// other change is in progress. A member does not respond while it is being defragmented. The operator also defragments
// a database whose size is at least 80% of the quota if a tenth of the quota is unused, and at any time, even outside
// maintenance windows, if that ends the NOSPACE alarm.
type Defragmentation struct {
	// Mode is Automatic, or Disabled: the operator does not defragment databases. Default: Automatic. Example: Disabled.
	//
	// +optional
	// +kubebuilder:validation:Enum=Automatic;Disabled
	Mode DefragmentationMode `json:"mode,omitempty"`

	// FreePercent is the unused share of a database file, in percent, at which it is defragmented, if at least minFree is
	// unused. Default: 50. Example: 30.
	//
	// +optional
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=99
	FreePercent *int32 `json:"freePercent,omitempty"`

	// MinFree is the unused space of a database file, in bytes, at which it is defragmented, if at least freePercent of
	// the file is unused. Default: 100Mi. Example: 1Gi.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?([kMGTPE]|[KMGTPE]i)?$`
	MinFree resource.Quantity `json:"minFree,omitzero"`

	// Interval is the shortest time between two defragmentations of the same member, as a duration. Default: 1h. Example:
	// 24h.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="must be at least 1m"
	Interval *metav1.Duration `json:"interval,omitempty"`
}

// DefragmentationMode selects whether the operator defragments databases.
type DefragmentationMode string

// Modes of defragmentation.
const (
	AutomaticDefragmentation DefragmentationMode = "Automatic"
	DisabledDefragmentation  DefragmentationMode = "Disabled"
)

// EtcdSpaceAvailable is the condition type that is true while the databases of all members are below their soft quota.
// It is absent with an external etcd, before etcd is bootstrapped, and while the cluster is hibernated.
const EtcdSpaceAvailable = "EtcdSpaceAvailable"

// DefragmentationStatus is the defragmentation in progress, and the failures of the last ones.
type DefragmentationStatus struct {
	// Member that is being defragmented. The operator sets it before it begins. Empty if there is none. Example: demo-1.
	//
	// +optional
	Member string `json:"member,omitempty"`

	// StartTime is the time at which the defragmentation of member began. Example: 2026-01-01T00:00:00Z.
	//
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// Failures is the number of defragmentations that have failed since the last success. The operator retries one minute
	// after the first failure, and doubles the time after each further one, up to an hour. Default: 0. Example: 1.
	//
	// +optional
	Failures int32 `json:"failures,omitempty"`

	// LastFailureTime is the time of the last of these failures. Example: 2026-01-01T00:00:00Z.
	//
	// +optional
	LastFailureTime *metav1.Time `json:"lastFailureTime,omitempty"`

	// Message is why the last one failed. Example: demo-1 does not respond.
	//
	// +optional
	Message string `json:"message,omitempty"`
}
