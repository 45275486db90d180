// Package overview reads the state of a cluster from the hosting cluster into one value, and derives the health of the
// cluster and the next step of its administrator.
package overview

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// Health summarizes a cluster.
type Health string

// Health values. Only Healthy and Hibernated need no attention.
const (
	Healthy     Health = "Healthy"
	Hibernated  Health = "Hibernated"
	Progressing Health = "Progressing"
	Paused      Health = "Paused"
	Degraded    Health = "Degraded"
	Unavailable Health = "Unavailable"
	Deleting    Health = "Deleting"
)

// Overview is the state of one cluster. Scripts read its JSON encoding.
type Overview struct {
	Name      string    `json:"name"`
	Namespace string    `json:"namespace"`
	Created   time.Time `json:"created"`
	Mode      string    `json:"mode"` // Cluster or Extension
	Etcd      string    `json:"etcd"` // embedded or external
	Health    Health    `json:"health"`
	Ready     int32     `json:"readyReplicas"` // of the members that are shown
	Desired   int32     `json:"replicas"`
	Voters    int32     `json:"voters,omitempty"`
	Version   string    `json:"version,omitempty"`
	Image     string    `json:"image,omitempty"`
	Endpoint  string    `json:"endpoint,omitempty"`

	Replicas     []Replica           `json:"members"`
	Certificates []Certificate       `json:"certificates,omitempty"` // by expiry
	Rotations    *v1alpha1.Rotations `json:"rotations,omitempty"`
	Backups      Backups             `json:"backups,omitzero"`
	Conditions   []metav1.Condition  `json:"conditions"`
	Problems     []metav1.Condition  `json:"problems"` // the conditions that need attention
	Alerts       []Alert             `json:"alerts"`   // whose causes are known without Prometheus
	Events       []Event             `json:"events,omitempty"`
	Next         Step                `json:"nextStep"`
	Notes        []string            `json:"notes,omitempty"` // errors of reads
}

// Replica is an API server, with an etcd member unless its role is server.
type Replica struct {
	Name      string `json:"name"`
	Role      string `json:"role"` // leader, voter, learner or server
	Ready     bool   `json:"ready"`
	Status    string `json:"status,omitempty"` // of the pod, such as Running or CrashLoopBackOff
	Restarts  int32  `json:"restarts"`
	Node      string `json:"node,omitempty"`
	DBSize    int64  `json:"dbSizeBytes,omitempty"`
	Unhealthy string `json:"unhealthySince,omitempty"`
	Problem   string `json:"problem,omitempty"` // why it is not ready: "does not respond within 2s"
	Usage     *Usage `json:"usage,omitempty"`   // nil if the metrics could not be read

	problem problem
}

// Usage contains metrics of an API server.
type Usage struct {
	Revision int64    `json:"revision"`
	Lag      int64    `json:"revisionLag"` // revisions behind the newest replica, read at nearly the same time
	Memory   int64    `json:"memoryBytes"`
	InFlight float64  `json:"requestsInFlight"`
	Watches  float64  `json:"watches"`
	DBInUse  int64    `json:"dbInUseBytes,omitempty"`
	DBQuota  int64    `json:"dbQuotaBytes,omitempty"`
	Requests *float64 `json:"requestsPerSecond,omitempty"` // nil with one sample
	Errors   *float64 `json:"errorsPerSecond,omitempty"`
	CPU      *float64 `json:"cpuCores,omitempty"`
}

// Certificate is a certificate or an authority in a Secret.
type Certificate struct {
	Secret    string    `json:"secret"`
	Authority bool      `json:"authority"`
	Expires   time.Time `json:"expires"`
}

// Backups are the last backups of a cluster and its schedules.
type Backups struct {
	Completed *Backup    `json:"lastCompleted,omitempty"`
	Failed    *Backup    `json:"lastFailed,omitempty"` // set if it is newer than Completed
	Running   []string   `json:"running,omitempty"`
	Waiting   []Waiting  `json:"waiting,omitempty"`
	Schedules []Schedule `json:"schedules,omitempty"`
}

// Waiting is a backup that cannot continue, and why.
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

// Schedule is a schedule of backups.
type Schedule struct {
	Name      string     `json:"name"`
	Suspended bool       `json:"suspended,omitempty"`
	Next      *time.Time `json:"next,omitempty"`
}

// Event is an event of the cluster or of one of its pods.
type Event struct {
	Time    time.Time `json:"time"`
	Object  string    `json:"object"`
	Warning bool      `json:"warning,omitempty"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Count   int32     `json:"count"`
}

// Step is the next step of the administrator.
type Step struct {
	Text    string `json:"text"`
	Command string `json:"command,omitempty"`
}
