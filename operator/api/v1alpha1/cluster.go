package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ApiServerCluster is a highly available Kubernetes API server: replicated pods, each of them an API server and, by
// default, a voting member of its own embedded etcd.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=apiserverclusters,singular=apiservercluster,shortName=asc,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`,description="Ready of wanted API servers"
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Voters",type=integer,JSONPath=`.status.voters`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.status.endpoint`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 45",message="the name becomes part of host names: at most 45 lower-case letters, digits and -, beginning with a letter"
type ApiServerCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:default={}
	Spec   ApiServerClusterSpec   `json:"spec,omitempty"`
	Status ApiServerClusterStatus `json:"status,omitempty"`
}

// ApiServerClusterList is a list of ApiServerClusters.
//
// +kubebuilder:object:root=true
type ApiServerClusterList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ApiServerCluster `json:"items"`
}

// ApiServerClusterSpec is what the user wants.
//
// +kubebuilder:validation:XValidation:rule="self.?etcd.?embedded.?members.orValue(1) <= self.?replicas.orValue(3)",message="etcd.embedded.members must not exceed replicas"
// +kubebuilder:validation:XValidation:rule="self.?etcd.?external.hasValue() == oldSelf.?etcd.?external.hasValue()",message="etcd cannot be switched between embedded and external"
type ApiServerClusterSpec struct {
	// Replicas is the number of API servers. Those beyond the voters of the embedded etcd use the voters as clients.
	//
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Replicas *int32 `json:"replicas,omitempty"`

	// Image of the API servers. Default: the operator's own, as it was when the resource was made.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// +optional
	// +kubebuilder:validation:MaxItems=16
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`

	// Resources of each API server and its member together.
	//
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// +kubebuilder:default={}
	Storage Storage `json:"storage,omitempty"`

	// +kubebuilder:default={}
	Etcd Etcd `json:"etcd,omitempty"`

	// +kubebuilder:default={}
	Service Service `json:"service,omitempty"`

	// NetworkPolicies says whether the operator keeps NetworkPolicies for the pods. Enabled: the API port is open to everyone,
	// the etcd peer port to the cluster's members, the etcd client port to replicas beyond the voters and to the operator,
	// nothing else is. Disabled: there are none, for networks whose policies come from elsewhere. Default: Enabled.
	// Example: Disabled.
	//
	// +kubebuilder:default=Enabled
	// +kubebuilder:validation:Enum=Enabled;Disabled
	// +optional
	NetworkPolicies NetworkPoliciesMode `json:"networkPolicies,omitempty"`

	// ExtraSANs are further names and IP addresses of the serving certificate.
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	ExtraSANs []string `json:"extraSANs,omitempty"`

	// ExtraArgs are further flags of the API server, by name without dashes in front. Values are literal: $(NAME) is not
	// expanded. Default: none. Example: {"max-requests-inflight": "800", "event-ttl": "2h"}.
	//
	// Refused are flags that the operator sets, flags that need a file that the pod does not have, and flags with which the
	// API server would not start. A value that it would not start with is reported as Degraded with reason InvalidSpec, and
	// no pod changes.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(name, name.matches('^[a-z0-9]+(-[a-z0-9]+)*$'))",message="flag names are given without dashes in front: max-requests-inflight"
	// +kubebuilder:validation:XValidation:rule="!self.exists(name, !(name in ['etcd-compaction-interval','etcd-count-metric-poll-period','etcd-db-metric-poll-interval','etcd-healthcheck-timeout','etcd-readycheck-timeout','etcd-snapshot-count','etcd-heartbeat-interval','etcd-election-timeout','tls-min-version','tls-cipher-suites']) && (name.startsWith('etcd-') || name.startsWith('peer-') || name.startsWith('requestheader-') || name.startsWith('tls-') || name in ['advertise-address','anonymous-auth','authorization-mode','bind-address','cert-dir','client-ca-file','controllers','endpoint-reconciler-type','help','permit-address-sharing','permit-port-sharing','proxy-client-cert-file','proxy-client-key-file','secure-port','service-account-issuer','service-account-key-file','service-account-signing-endpoint','service-account-signing-key-file','version']))",message="this flag is set by the operator"
	// +kubebuilder:validation:XValidation:rule="!self.exists(name, name.endsWith('-file') || (name != 'authorization-mode' && (name.startsWith('audit-') || name.startsWith('authentication-') || name.startsWith('authorization-') || name.startsWith('encryption-') || name.startsWith('oidc-'))) || name in ['allow-metric-labels-manifest','debug-socket-path','kubelet-certificate-authority','kubelet-client-certificate','kubelet-client-key'])",message="this flag is not available: it needs a file that the pod does not have, or the API server does not implement it"
	ExtraArgs map[string]string `json:"extraArgs,omitempty"`

	// +optional
	Scheduling Scheduling `json:"scheduling,omitempty"`
}

// Storage is the volume of each member of the embedded etcd.
//
// +kubebuilder:validation:XValidation:rule="!has(self.size) || !has(oldSelf.size) || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",message="storage.size can only grow"
// +kubebuilder:validation:XValidation:rule="has(self.class) == has(oldSelf.class) && (!has(self.class) || self.class == oldSelf.class)",message="storage.class is immutable"
type Storage struct {
	// Size, such as 20Gi. It can only grow, where the storage class allows it. The etcd quota is six tenths of it.
	//
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?([kMGTPE]|[KMGTPE]i)?$`
	// +optional
	// +kubebuilder:default="8Gi"
	Size resource.Quantity `json:"size,omitzero"`

	// Class is the StorageClass; default: the cluster's.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Class *string `json:"class,omitempty"`
}

// Etcd is either embedded (default) or external.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.embedded) && has(self.external))",message="etcd is either embedded or external"
type Etcd struct {
	// +optional
	Embedded *EmbeddedEtcd `json:"embedded,omitempty"`
	// +optional
	External *ExternalEtcd `json:"external,omitempty"`
}

// EmbeddedEtcd is run by the API servers themselves.
type EmbeddedEtcd struct {
	// Members is the number of voters; default: the largest odd number that fits the replicas, at most 5.
	//
	// +optional
	// +kubebuilder:validation:Enum=1;3;5
	Members *int32 `json:"members,omitempty"`
}

// ExternalEtcd is run by somebody else.
type ExternalEtcd struct {
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^https?://[^/,]+$`
	Endpoints []string `json:"endpoints"`

	// SecretRef names a Secret with ca.crt, tls.crt and tls.key. Needed when the endpoints are https.
	//
	// +optional
	SecretRef *corev1.LocalObjectReference `json:"secretRef,omitempty"`

	// Prefix of all keys.
	//
	// +kubebuilder:default="/registry"
	// +kubebuilder:validation:Pattern=`^/.+$`
	// +kubebuilder:validation:MaxLength=512
	Prefix string `json:"prefix,omitempty"`
}

// Service is how clients reach the API servers.
type Service struct {
	// +kubebuilder:default=ClusterIP
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	Type corev1.ServiceType `json:"type,omitempty"`
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// +optional
	LoadBalancerClass *string `json:"loadBalancerClass,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxItems=64
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`
}

// NetworkPoliciesMode says whether the operator keeps NetworkPolicies.
type NetworkPoliciesMode string

// Modes of NetworkPolicies.
const (
	NetworkPoliciesEnabled  NetworkPoliciesMode = "Enabled"
	NetworkPoliciesDisabled NetworkPoliciesMode = "Disabled"
)

// Scheduling says where pods may run. They avoid each other's hosts by preference.
type Scheduling struct {
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`
	// Affinity replaces the preference for hosts without a replica.
	//
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`
	// +optional
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
}
