// Package overview reads the state of a cluster from the hosting cluster, and derives the health of the cluster and the
// next step of its administrator.
package overview

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// Health summarizes the state of a cluster.
type Health string

// Values of Health. Only Healthy and Hibernated need no attention.
const (
	Healthy     Health = "Healthy"
	Hibernated  Health = "Hibernated"
	Progressing Health = "Progressing"
	Paused      Health = "Paused"
	Degraded    Health = "Degraded"
	Unavailable Health = "Unavailable"
	Deleting    Health = "Deleting"
)

// Overview is the state of a cluster. Its JSON encoding is an interface for scripts.
type Overview struct {
	Name      string    `json:"name"`
	Namespace string    `json:"namespace"`
	Created   time.Time `json:"created"`
	Mode      string    `json:"mode"` // Cluster or Extension
	Etcd      string    `json:"etcd"` // embedded or external
	Health    Health    `json:"health"`
	Ready     int32     `json:"readyReplicas"` // counted in Replicas if the cluster's pods are known
	Desired   int32     `json:"replicas"`
	Voters    int32     `json:"voters,omitempty"`
	Version   string    `json:"version,omitempty"`
	Image     string    `json:"image,omitempty"`
	Endpoint  string    `json:"endpoint,omitempty"`

	Replicas     []Replica           `json:"members"`
	Certificates []Certificate       `json:"certificates,omitempty"` // sorted by expiration
	Rotations    *v1alpha1.Rotations `json:"rotations,omitempty"`
	Backups      Backups             `json:"backups,omitzero"`
	Deletion     Deletion            `json:"deletion,omitzero"`
	Conditions   []metav1.Condition  `json:"conditions"`
	Problems     []metav1.Condition  `json:"problems"` // conditions that need attention
	Alerts       []Alert             `json:"alerts"`   // alerts whose causes are known without Prometheus
	Events       []Event             `json:"events,omitempty"`
	Next         Step                `json:"nextStep"`
	Notes        []string            `json:"notes,omitempty"` // errors of reads
}

// Replica is an API server. It has an embedded etcd member unless its role is server.
type Replica struct {
	Name      string `json:"name"`
	Role      string `json:"role"` // leader, voter, learner or server
	Ready     bool   `json:"ready"`
	Status    string `json:"status,omitempty"` // status of the pod, such as Running or CrashLoopBackOff
	Restarts  int32  `json:"restarts"`
	Node      string `json:"node,omitempty"`
	DBSize    int64  `json:"dbSizeBytes,omitempty"`
	Unhealthy string `json:"unhealthySince,omitempty"`
	Problem   string `json:"problem,omitempty"` // why the API server is not ready, such as "does not respond within 2s"
	Usage     *Usage `json:"usage,omitempty"`   // nil if the metrics could not be read

	problem problem
}

// Usage contains metrics of an API server at one time.
type Usage struct {
	Revision int64    `json:"revision"`
	Lag      int64    `json:"revisionLag"` // revisions behind the newest replica; all are read at nearly the same time
	Memory   int64    `json:"memoryBytes"`
	InFlight float64  `json:"requestsInFlight"`
	Watches  float64  `json:"watches"`
	DBInUse  int64    `json:"dbInUseBytes,omitempty"`
	DBQuota  int64    `json:"dbQuotaBytes,omitempty"`
	Requests *float64 `json:"requestsPerSecond,omitempty"` // nil without an earlier sample
	Errors   *float64 `json:"errorsPerSecond,omitempty"`
	CPU      *float64 `json:"cpuCores,omitempty"`
}

// Certificate describes a certificate, possibly of a certificate authority, in a Secret.
type Certificate struct {
	Secret    string    `json:"secret"`
	Authority bool      `json:"authority"`
	Expires   time.Time `json:"expires"`
}

// Backups contains the last backups and the schedules of a cluster.
type Backups struct {
	Completed *Backup    `json:"lastCompleted,omitempty"`
	Failed    *Backup    `json:"lastFailed,omitempty"` // nil if Completed is newer
	Running   []string   `json:"running,omitempty"`
	Waiting   []Waiting  `json:"waiting,omitempty"`
	Schedules []Schedule `json:"schedules,omitempty"`
}

// Deletion describes the effects of a deletion of the cluster and, if the deletion was requested, the time of the
// request.
type Deletion struct {
	Protected   bool       `json:"protected,omitempty"`
	Retain      bool       `json:"retain,omitempty"`      // volumes and keys stay
	FinalBackup bool       `json:"finalBackup,omitempty"` // a backup is taken first
	Requested   *time.Time `json:"requested,omitempty"`
}

// Waiting is a backup that cannot continue, with the reason.
type Waiting struct {
	Name    string `json:"name"`
	Message string `json:"message"`
}

// Backup is a finished backup.
type Backup struct {
	Name     string    `json:"name"`
	Finished time.Time `json:"finished"`
	Size     int64     `json:"sizeBytes,omitempty"`
	Revision int64     `json:"revision,omitempty"`
	Location string    `json:"location,omitempty"`
	Message  string    `json:"message,omitempty"`
}

// Schedule is an ApiServerBackupSchedule.
type Schedule struct {
	Name      string     `json:"name"`
	Suspended bool       `json:"suspended,omitempty"`
	Next      *time.Time `json:"next,omitempty"`
}

// Event is an event about the cluster or a pod of the cluster.
type Event struct {
	Time    time.Time `json:"time"`
	Object  string    `json:"object"`
	Warning bool      `json:"warning,omitempty"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   int32     `json:"count"`
}

// Step is the suggested next step of the administrator.
type Step struct {
	Text    string `json:"text"`
	Command string `json:"command,omitempty"`
}
