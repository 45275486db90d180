package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ApiServerKubeconfig gives one user access to an ApiServerCluster. The operator creates a Secret with a kubeconfig and
// its parts, and keeps it valid, even while authorities are replaced. Deleting the object deletes the Secret, but
// copies of the client certificate stay valid until they expire, because Kubernetes cannot revoke certificates. To
// revoke access, remove the user's RBAC bindings, choose a short validity, or replace the authorities
// (spec.certificates.authorities.rotateBefore with a short overlap).
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=apiserverkubeconfigs,singular=apiserverkubeconfig,shortName=askc
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Cluster",type=string,JSONPath=`.spec.clusterRef.name`
// +kubebuilder:printcolumn:name="User",type=string,JSONPath=`.spec.user`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Expires",type=string,JSONPath=`.status.expirationTime`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ApiServerKubeconfig struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired access.
	Spec ApiServerKubeconfigSpec `json:"spec"`

	// Status is the state that the operator last observed.
	Status ApiServerKubeconfigStatus `json:"status,omitempty"`
}

// ApiServerKubeconfigList is a list of ApiServerKubeconfigs.
//
// +kubebuilder:object:root=true
type ApiServerKubeconfigList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ApiServerKubeconfig `json:"items"`
}

// ApiServerKubeconfigSpec is the desired access.
type ApiServerKubeconfigSpec struct {
	// ClusterRef names the ApiServerCluster, in the same namespace. Required, immutable. Example: {"name": "demo"}.
	//
	// +kubebuilder:validation:XValidation:rule="self.name == oldSelf.name",message="clusterRef is immutable"
	// +kubebuilder:validation:XValidation:rule="self.name != ''",message="clusterRef.name is required"
	ClusterRef corev1.LocalObjectReference `json:"clusterRef"`

	// User is the name of the user, as in the cluster's RBAC bindings. Required. Example: ci.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	User string `json:"user"`

	// Groups of the user. system:masters is not allowed, because RBAC cannot restrict it. Default: none.
	// Example: ["deployers"].
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="!('system:masters' in self)",message="system:masters is not allowed"
	Groups []string `json:"groups,omitempty"`

	// Validity of the client certificate, as a duration of at least 1m. The operator renews the certificate when a third
	// of it remains; processes must read the kubeconfig again before the old one expires. Default: 720h (30 days).
	// Example: 24h.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m')",message="must be at least 1m"
	Validity *metav1.Duration `json:"validity,omitempty"`

	// Server is the URL of the API. Default: status.endpoint of the cluster. Example: https://api.example.org:6443.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	// +kubebuilder:validation:Pattern=`^https://[^/]+(/.*)?$`
	Server string `json:"server,omitempty"`

	// TLSServerName is the name that clients verify in the API servers' certificate. Default: the host in server.
	// Example: demo.default.svc.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	TLSServerName string `json:"tlsServerName,omitempty"`
}

// ApiServerKubeconfigStatus is the state that the operator last observed.
type ApiServerKubeconfigStatus struct {
	// ObservedGeneration is the metadata.generation of the spec that the other fields describe. Example: 1.
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// SecretRef names the Secret, which has the name of the ApiServerKubeconfig followed by -kubeconfig, with the keys
	// kubeconfig, ca.crt, tls.crt and tls.key. Example: {"name": "ci-kubeconfig"}.
	//
	// +optional
	SecretRef *corev1.LocalObjectReference `json:"secretRef,omitempty"`

	// ExpirationTime is the time at which the client certificate expires. Example: 2026-01-31T00:00:00Z.
	//
	// +optional
	ExpirationTime *metav1.Time `json:"expirationTime,omitempty"`

	// RenewalTime is the time at which the client certificate will be renewed. Example: 2026-01-21T00:00:00Z.
	//
	// +optional
	RenewalTime *metav1.Time `json:"renewalTime,omitempty"`

	// Conditions of the kubeconfig: Ready.
	//
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// KubeconfigReady is the condition of an ApiServerKubeconfig that is true when the Secret has a valid kubeconfig.
const KubeconfigReady = "Ready"
