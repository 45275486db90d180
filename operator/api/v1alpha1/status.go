package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Condition types.
const (
	// Available: the API is served by at least one replica that reaches a quorum.
	Available = "Available"
	// Progressing: the world is being changed towards the spec.
	Progressing = "Progressing"
	// Degraded: something is wrong that the operator cannot, or not yet, put right.
	Degraded = "Degraded"
	// EtcdQuorum: a majority of the voters agrees. Absent with an external etcd.
	EtcdQuorum = "EtcdQuorum"
	// CertificatesValid: no authority or leaf is expired or about to.
	CertificatesValid = "CertificatesValid"
)

// ApiServerClusterStatus is what the operator saw last.
type ApiServerClusterStatus struct {
	// ObservedGeneration is the spec's generation that all other fields speak of.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// Replicas is the number of API server pods.
	Replicas      int32 `json:"replicas,omitempty"`
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// Ready is ready/wanted replicas.
	Ready string `json:"ready,omitempty"`
	// Voters of the embedded etcd.
	Voters int32 `json:"voters,omitempty"`
	// Selector of the API server pods, for the scale subresource.
	Selector string `json:"selector,omitempty"`
	// Version of the API that is served.
	Version string `json:"version,omitempty"`
	// Endpoint is the URL for clients.
	Endpoint string `json:"endpoint,omitempty"`
	// Image that the replicas run. Without spec.image it stays what it was at first.
	Image string `json:"image,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=name
	Members []MemberStatus `json:"members,omitempty"`

	// Membership is what the operator must remember between two steps of a change.
	//
	// +optional
	Membership *Membership `json:"membership,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// MemberStatus is one member of the embedded etcd.
type MemberStatus struct {
	Name string `json:"name"`
	// ID in etcd, hexadecimal.
	ID string `json:"id,omitempty"`
	// Role is leader, voter or learner.
	//
	// +kubebuilder:validation:Enum=leader;voter;learner
	Role string `json:"role,omitempty"`
	// Ready: the member answers and its API server is ready.
	Ready bool `json:"ready"`
	// Version of etcd.
	Version string `json:"version,omitempty"`
	// DBSize in bytes.
	DBSize int64 `json:"dbSize,omitempty"`
	// UnhealthySince is when the member stopped answering; absent while it answers.
	//
	// +optional
	UnhealthySince *metav1.Time `json:"unhealthySince,omitempty"`
}

// Membership is the operator's memory of etcd membership: intents, written before they are acted upon.
type Membership struct {
	// Founders are the names of the first members.
	//
	// +optional
	// +listType=atomic
	Founders []string `json:"founders,omitempty"`
	// Formed: the founders have made a cluster; from then on members join one at a time.
	Formed bool `json:"formed,omitempty"`
	// NextOrdinal has never been part of a member's name.
	NextOrdinal int32 `json:"nextOrdinal,omitempty"`
	// Joining is the name of the member being added.
	//
	// +optional
	Joining string `json:"joining,omitempty"`
	// JoiningSince is when Joining was set.
	//
	// +optional
	JoiningSince *metav1.Time `json:"joiningSince,omitempty"`
}
