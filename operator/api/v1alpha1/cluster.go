package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ApiServerCluster is a highly available Kubernetes API server: replicated pods, each running an API server and, by
// default, a voting member of an embedded etcd.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=apiserverclusters,singular=apiservercluster,shortName=asc,categories=all
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.ready`,description="Ready and desired API servers"
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.spec.replicas`
// +kubebuilder:printcolumn:name="Voters",type=integer,JSONPath=`.status.voters`
// +kubebuilder:printcolumn:name="Version",type=string,JSONPath=`.status.version`
// +kubebuilder:printcolumn:name="Endpoint",type=string,JSONPath=`.status.endpoint`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$') && size(self.metadata.name) <= 45",message="metadata.name becomes part of DNS names: at most 45 lower-case letters, digits and -, beginning with a letter"
type ApiServerCluster struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is the desired state. Default: {}, three replicas with an embedded etcd.
	//
	// +kubebuilder:default={}
	Spec ApiServerClusterSpec `json:"spec,omitempty"`

	// Status is the state that the operator last observed.
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

// ApiServerClusterSpec is the desired state of an ApiServerCluster.
//
// +kubebuilder:validation:XValidation:rule="self.?replicas.orValue(3) == 0 || self.?etcd.?embedded.?members.orValue(1) <= self.?replicas.orValue(3)",message="etcd.embedded.members must not exceed replicas"
// +kubebuilder:validation:XValidation:rule="(has(self.mode) && self.mode == 'Extension') == (has(oldSelf.mode) && oldSelf.mode == 'Extension')",message="mode is immutable"
// +kubebuilder:validation:XValidation:rule="(has(self.mode) && self.mode == 'Extension') == (has(self.extension) && has(self.extension.groups) && size(self.extension.groups) > 0)",message="extension.groups is required in mode Extension, and only allowed there"
// +kubebuilder:validation:XValidation:rule="!(has(self.mode) && self.mode == 'Extension') || !(has(self.aggregation) && has(self.aggregation.apiServices) && size(self.aggregation.apiServices) > 0)",message="aggregation.apiServices cannot be used in mode Extension"
// +kubebuilder:validation:XValidation:rule="!has(self.restore) || !self.?etcd.?external.hasValue()",message="restore needs an embedded etcd"
// +kubebuilder:validation:XValidation:rule="!has(self.recovery) || !self.?etcd.?external.hasValue()",message="recovery needs an embedded etcd"
// +kubebuilder:validation:XValidation:rule="!has(self.restore) || has(oldSelf.restore)",message="restore can only be set when the cluster is created"
// +kubebuilder:validation:XValidation:rule="self.?etcd.?external.hasValue() == oldSelf.?etcd.?external.hasValue()",message="etcd cannot be switched between embedded and external"
// +kubebuilder:validation:XValidation:rule="!(has(self.controllers) && self.controllers == 'Embedded' && has(self.companions) && has(self.companions.kubeControllerManager))",message="controllers Embedded cannot be used with companions.kubeControllerManager, which runs the same controllers"
// +kubebuilder:validation:XValidation:rule="!(has(self.mode) && self.mode == 'Extension') || !has(self.controllers) && !(has(self.companions) && (has(self.companions.kubeControllerManager) || has(self.companions.kubeScheduler)))",message="controllers and companions cannot be used in mode Extension"
// +kubebuilder:validation:XValidation:rule="!(has(self.adopt) && has(self.restore))",message="adopt and restore are mutually exclusive"
// +kubebuilder:validation:XValidation:rule="!(has(self.deletion) && has(self.deletion.finalBackup)) || !self.?etcd.?external.hasValue()",message="deletion.finalBackup needs an embedded etcd"
// +kubebuilder:validation:XValidation:rule="!(has(self.deletion) && has(self.deletion.finalBackup) && has(self.encryption)) || has(self.deletion.finalBackup.encryption) || has(self.deletion.policy) && self.deletion.policy == 'Retain'",message="deletion.finalBackup.encryption is required with encryption, unless deletion.policy is Retain: the keys of the stored objects are deleted with the cluster, and only an encrypted backup contains them"
type ApiServerClusterSpec struct {
	// Replicas is the number of API server pods, 0 to 100. If there are more replicas than etcd voters, the additional
	// replicas run no member and connect to the voters as etcd clients. 0 hibernates the cluster: no pods run, but
	// volumes, certificates and etcd members are kept until you scale it up again. Default: 3. Example: 5.
	//
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Replicas *int32 `json:"replicas,omitempty"`

	// Image is the container image of the API servers. Default: the operator's own image when the cluster was created; an
	// upgrade of the operator does not change it. Example: registry.example/quorate:0.2.0.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image,omitempty"`

	// ImagePullPolicy of the API server pods. Default: IfNotPresent, also for the tag latest. Example: Always.
	//
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// ImagePullSecrets are Secrets of the same namespace with credentials for the image's registry. Default: none.
	// Example: [{"name": "registry-credentials"}].
	//
	// +optional
	// +kubebuilder:validation:MaxItems=16
	ImagePullSecrets []corev1.LocalObjectReference `json:"imagePullSecrets,omitempty"`

	// Resources of each replica, that is, of an API server and its etcd member together. Default: requests of 100m CPU and
	// 256Mi memory, and a memory limit of 512Mi plus 60 % of the volume's size; no limit with an external etcd. A value
	// replaces all of these. Example: {"requests": {"cpu": "1", "memory": "2Gi"}, "limits": {"memory": "6Gi"}}.
	//
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// Storage is the volume of each member of the embedded etcd. Unused with an external etcd.
	//
	// +kubebuilder:default={}
	Storage Storage `json:"storage,omitempty"`

	// Etcd selects the etcd that stores the cluster's objects. Default: embedded.
	//
	// +kubebuilder:default={}
	Etcd Etcd `json:"etcd,omitempty"`

	// Restore creates the cluster from a backup. It can only be set when the cluster is created, and has no effect once
	// the backup is restored. Default: an empty cluster. Example: {"from": {"backupName": "monday"}}.
	//
	// +optional
	Restore *Restore `json:"restore,omitempty"`

	// Adopt continues a deleted cluster of the same name, whose volumes and keys were retained by its
	// spec.deletion.policy. It has no effect once they are adopted. Default: unset; retained objects are never adopted
	// unasked. Example: {"clusterUID": "0c5f2b1e-9d1c-4c8e-8a53-0d4f4c9f7b11"}.
	//
	// +optional
	Adopt *Adoption `json:"adopt,omitempty"`

	// Deletion configures what happens when the cluster is deleted.
	//
	// +optional
	Deletion Deletion `json:"deletion,omitzero"`

	// Recovery requests one recovery from a lost quorum. It stops all replicas, and the writes that only the lost members
	// have are lost. Default: no recovery. Example: {"requestID": "2026-01-31"}.
	//
	// +optional
	Recovery *Recovery `json:"recovery,omitempty"`

	// Service configures the Service through which clients reach the API servers.
	//
	// +kubebuilder:default={}
	Service Service `json:"service,omitempty"`

	// NetworkPolicies selects whether the operator manages NetworkPolicies for the pods. Enabled: the API port is open to
	// all clients, the etcd peer port to the cluster's members, the etcd client port to replicas without a member and to
	// the operator; all other ports are closed. Disabled: the operator creates none and deletes those it created. Use this
	// if you manage the policies yourself. Default: Enabled. Example: Disabled.
	//
	// +kubebuilder:default=Enabled
	// +kubebuilder:validation:Enum=Enabled;Disabled
	// +optional
	NetworkPolicies NetworkPoliciesMode `json:"networkPolicies,omitempty"`

	// ExtraSANs are additional DNS names and IP addresses of the serving certificate. Changing them restarts no pod.
	// Default: none. Example: ["api.example.org", "192.0.2.10"].
	//
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:items:XValidation:rule="self.matches('^(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])([.](25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])){3}$') || self.matches('^[0-9A-Fa-f:]*:[0-9A-Fa-f:.]*$') || self.matches('^([*][.])?[A-Za-z0-9_][-A-Za-z0-9_]*([.][A-Za-z0-9_][-A-Za-z0-9_]*)*$') && !self.matches('(^|[.])[0-9]+$')",message="is not a DNS name or IP address",messageExpression="'not a DNS name or IP address: ' + self"
	ExtraSANs []string `json:"extraSANs,omitempty"`

	// Certificates configures the lifetime and replacement of the cluster's certificates and service-account keys.
	//
	// +optional
	Certificates Certificates `json:"certificates,omitzero"`

	// Audit configures the audit log. A change restarts the pods one at a time. Default: unset, nothing is audited.
	// Example: {"configMapRef": {"name": "demo-audit"}, "log": "Stdout"}.
	//
	// +optional
	Audit *Audit `json:"audit,omitempty"`

	// Encryption configures the encryption of objects in etcd. Default: unset, objects are not encrypted.
	// Example: {"resources": ["secrets"], "provider": "secretbox"}.
	//
	// +optional
	Encryption *Encryption `json:"encryption,omitempty"`

	// Authentication refers to an AuthenticationConfiguration of apiserver.config.k8s.io. API servers reload changes,
	// except that a change of anonymous restarts the pods one at a time. Anonymous requests to /livez and /readyz must be
	// allowed, because kubelets probe them. Default: unset. Example: {"configMapRef": {"name": "demo-authentication"}}.
	//
	// +optional
	Authentication *ConfigurationFiles `json:"authentication,omitempty"`

	// Authorization refers to an AuthorizationConfiguration of apiserver.config.k8s.io, which must have the types Node and
	// RBAC. API servers reload changes of webhooks; changes of other types or kubeconfigs restart the pods one at a time.
	// Default: unset, Node and RBAC. Example: {"configMapRef": {"name": "demo-authorization"}, "secretRef": {"name":
	// "demo-authorization-webhook"}}.
	//
	// +optional
	Authorization *ConfigurationFiles `json:"authorization,omitempty"`

	// Admission refers to an AdmissionConfiguration of apiserver.config.k8s.io. A change restarts the pods one at a time.
	// Default: unset, the plugins' defaults. Example: {"configMapRef": {"name": "demo-admission"}}.
	//
	// +optional
	Admission *ConfigurationFiles `json:"admission,omitempty"`

	// Egress refers to an EgressSelectorConfiguration of apiserver.k8s.io. A change restarts the pods one at a time.
	// Default: unset, connections are direct. Example: {"configMapRef": {"name": "demo-egress"}}.
	//
	// +optional
	Egress *ConfigurationFiles `json:"egress,omitempty"`

	// Tracing refers to a TracingConfiguration of apiserver.config.k8s.io. A change restarts the pods one at a time.
	// Default: unset, no traces. Example: {"configMapRef": {"name": "demo-tracing"}}.
	//
	// +optional
	Tracing *ConfigurationFiles `json:"tracing,omitempty"`

	// Patches change the pods. Default: none.
	//
	// +optional
	Patches Patches `json:"patches,omitzero"`

	// ExtraArgs are additional flags of the API server, by name without leading dashes. Values are literal: $(NAME) is not
	// expanded. Default: none. Example: {"max-requests-inflight": "800", "event-ttl": "2h"}.
	//
	// The operator rejects flags that it sets itself, flags that need a file that the pod does not have, and flags that
	// the API server does not implement. If the API server would not start with a value, the condition Degraded has the
	// reason InvalidSpec, and no pod changes.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(name, name.matches('^[a-z0-9]+(-[a-z0-9]+)*$'))",message="flag names have no leading dashes: max-requests-inflight"
	// +kubebuilder:validation:XValidation:rule="!self.exists(name, !(name in ['etcd-compaction-interval','etcd-count-metric-poll-period','etcd-db-metric-poll-interval','etcd-healthcheck-timeout','etcd-readycheck-timeout','etcd-snapshot-count','etcd-heartbeat-interval','etcd-election-timeout','tls-min-version','tls-cipher-suites']) && (name.startsWith('etcd-') || name.startsWith('peer-') || name.startsWith('requestheader-') || name.startsWith('tls-') || name in ['admission-control-config-file','advertise-address','anonymous-auth','audit-log-path','audit-policy-file','audit-webhook-config-file','authentication-config','authorization-config','authorization-mode','bind-address','cert-dir','client-ca-file','controllers','egress-selector-config-file','encryption-provider-config','encryption-provider-config-automatic-reload','endpoint-reconciler-type','help','permit-address-sharing','permit-port-sharing','proxy-client-cert-file','proxy-client-key-file','secure-port','service-account-issuer','service-account-key-file','service-account-signing-endpoint','service-account-signing-key-file','tracing-config-file','version']))",message="this flag is set by the operator",messageExpression="'this flag is set by the operator:' + ('admission-control-config-file' in self ? ' admission-control-config-file' : '') + ('advertise-address' in self ? ' advertise-address' : '') + ('anonymous-auth' in self ? ' anonymous-auth' : '') + ('audit-log-path' in self ? ' audit-log-path' : '') + ('audit-policy-file' in self ? ' audit-policy-file' : '') + ('audit-webhook-config-file' in self ? ' audit-webhook-config-file' : '') + ('authentication-config' in self ? ' authentication-config' : '') + ('authorization-config' in self ? ' authorization-config' : '') + ('authorization-mode' in self ? ' authorization-mode' : '') + ('bind-address' in self ? ' bind-address' : '') + ('cert-dir' in self ? ' cert-dir' : '') + ('client-ca-file' in self ? ' client-ca-file' : '') + ('controllers' in self ? ' controllers' : '') + ('egress-selector-config-file' in self ? ' egress-selector-config-file' : '') + ('encryption-provider-config' in self ? ' encryption-provider-config' : '') + ('encryption-provider-config-automatic-reload' in self ? ' encryption-provider-config-automatic-reload' : '') + ('endpoint-reconciler-type' in self ? ' endpoint-reconciler-type' : '') + ('help' in self ? ' help' : '') + ('permit-address-sharing' in self ? ' permit-address-sharing' : '') + ('permit-port-sharing' in self ? ' permit-port-sharing' : '') + ('proxy-client-cert-file' in self ? ' proxy-client-cert-file' : '') + ('proxy-client-key-file' in self ? ' proxy-client-key-file' : '') + ('secure-port' in self ? ' secure-port' : '') + ('service-account-issuer' in self ? ' service-account-issuer' : '') + ('service-account-key-file' in self ? ' service-account-key-file' : '') + ('service-account-signing-endpoint' in self ? ' service-account-signing-endpoint' : '') + ('service-account-signing-key-file' in self ? ' service-account-signing-key-file' : '') + ('tracing-config-file' in self ? ' tracing-config-file' : '') + ('version' in self ? ' version' : '') + (self.exists(name, !(name in ['etcd-compaction-interval','etcd-count-metric-poll-period','etcd-db-metric-poll-interval','etcd-healthcheck-timeout','etcd-readycheck-timeout','etcd-snapshot-count','etcd-heartbeat-interval','etcd-election-timeout']) && name.startsWith('etcd-')) ? ' etcd-*' : '') + (self.exists(name, name.startsWith('peer-')) ? ' peer-*' : '') + (self.exists(name, name.startsWith('requestheader-')) ? ' requestheader-*' : '') + (self.exists(name, !(name in ['tls-min-version','tls-cipher-suites']) && name.startsWith('tls-')) ? ' tls-*' : '')"
	// +kubebuilder:validation:XValidation:rule="!self.exists(name, name.endsWith('-file') && !(name in ['admission-control-config-file','audit-policy-file','audit-webhook-config-file','egress-selector-config-file','tracing-config-file']) || !(name in ['authentication-config','authorization-config','authorization-mode']) && (name.startsWith('authentication-') || name.startsWith('authorization-') || name.startsWith('oidc-')) || name in ['allow-metric-labels-manifest','debug-socket-path','extension-groups','kubeconfig','kubelet-certificate-authority','kubelet-client-certificate','kubelet-client-key'])",message="this flag is not available: it needs a file that the pod does not have, or the API server does not implement it"
	ExtraArgs map[string]string `json:"extraArgs,omitempty"`

	// Maintenance limits when healthy replicas are restarted.
	//
	// +optional
	Maintenance Maintenance `json:"maintenance,omitzero"`

	// Scheduling constrains the nodes that pods run on.
	//
	// +optional
	Scheduling Scheduling `json:"scheduling,omitempty"`

	// Aggregation configures the API groups of the cluster that extension API servers serve.
	//
	// +optional
	Aggregation Aggregation `json:"aggregation,omitzero"`

	// Mode selects the API that the API servers serve. Cluster: the complete Kubernetes API, as a separate cluster.
	// Extension: the API groups in extension, to the hosting cluster. Immutable. Default: Cluster. Example: Extension.
	//
	// +optional
	// +kubebuilder:validation:Enum=Cluster;Extension
	// +kubebuilder:validation:MaxLength=16
	Mode Mode `json:"mode,omitempty"`

	// Extension configures mode Extension.
	//
	// +optional
	Extension Extension `json:"extension,omitzero"`

	// Controllers selects whether the API servers run the controllers that a cluster without kube-controller-manager
	// needs. Embedded: one replica at a time runs namespace deletion, garbage collection, service accounts, resource
	// quotas, ClusterRole aggregation and type checking of ValidatingAdmissionPolicies. None: the API servers run no
	// controllers. A change restarts the pods one at a time. Default: None with companions.kubeControllerManager, which
	// runs the same controllers, and Embedded otherwise. Example: None.
	//
	// +optional
	// +kubebuilder:validation:Enum=Embedded;None
	Controllers ControllersMode `json:"controllers,omitempty"`

	// Companions are further control-plane components, which worker nodes need to join the cluster. Default: none.
	// Example: {"kubeControllerManager": {"image": "registry.k8s.io/kube-controller-manager:v1.37.2"}}.
	//
	// +optional
	Companions Companions `json:"companions,omitzero"`
}

// Storage describes the volume of each member of the embedded etcd.
//
// +kubebuilder:validation:XValidation:rule="!has(self.size) || !has(oldSelf.size) || quantity(self.size).compareTo(quantity(oldSelf.size)) >= 0",message="storage.size can only grow"
// +kubebuilder:validation:XValidation:rule="has(self.class) == has(oldSelf.class) && (!has(self.class) || self.class == oldSelf.class)",message="storage.class is immutable"
type Storage struct {
	// Size of the volume, in bytes. It can only grow, and only if the storage class allows expansion. The quota of the
	// etcd database is 60% of it, at most 8Gi. Default: 8Gi. Example: 20Gi.
	//
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^[0-9]+(\.[0-9]+)?([kMGTPE]|[KMGTPE]i)?$`
	// +optional
	// +kubebuilder:default="8Gi"
	Size resource.Quantity `json:"size,omitzero"`

	// Class is the name of the StorageClass. Immutable. Default: the hosting cluster's default class. Example: fast-ssd.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=253
	Class *string `json:"class,omitempty"`
}

// Etcd is either embedded or external. The choice is immutable.
//
// +kubebuilder:validation:XValidation:rule="!(has(self.embedded) && has(self.external))",message="etcd is either embedded or external"
type Etcd struct {
	// Embedded runs etcd members inside the API servers. This is the default if neither field is set.
	// Example: {"members": 3}.
	//
	// +optional
	Embedded *EmbeddedEtcd `json:"embedded,omitempty"`

	// External uses an etcd that the operator does not manage. Default: unset.
	// Example: {"endpoints": ["https://etcd.example.org:2379"], "secretRef": {"name": "etcd-client"}}.
	//
	// +optional
	External *ExternalEtcd `json:"external,omitempty"`
}

// EmbeddedEtcd configures the etcd that runs inside the API servers.
type EmbeddedEtcd struct {
	// Members is the number of voting members: 1, 3 or 5, at most spec.replicas. Default: the largest of these that
	// spec.replicas allows. Example: 3.
	//
	// +optional
	// +kubebuilder:validation:Enum=1;3;5
	Members *int32 `json:"members,omitempty"`

	// ReplaceUnhealthyAfter is the time after which an unhealthy member is replaced by a member with a new volume, if the
	// other members have a quorum and at least one healthy member has the same configuration. A member that cannot start
	// because its data is damaged is replaced without delay. Default: 5m. Example: 30m.
	//
	// +optional
	// +kubebuilder:validation:Schemaless
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=32
	// +kubebuilder:validation:Pattern=`^([0-9]+(\.[0-9]+)?(ms|s|m|h))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('10s')",message="must be at least 10s"
	ReplaceUnhealthyAfter *metav1.Duration `json:"replaceUnhealthyAfter,omitempty"`

	// Defragmentation configures when the operator releases unused space of the members' databases.
	//
	// +optional
	Defragmentation Defragmentation `json:"defragmentation,omitzero"`
}

// ExternalEtcd configures an etcd that the operator does not manage.
type ExternalEtcd struct {
	// Endpoints are the client URLs of the etcd members. Required. Example: ["https://etcd.example.org:2379"].
	//
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=512
	// +kubebuilder:validation:items:Pattern=`^https?://[^/,]+$`
	Endpoints []string `json:"endpoints"`

	// SecretRef names a Secret of the same namespace with the keys ca.crt, tls.crt and tls.key. Required for https
	// endpoints. Default: none. Example: {"name": "etcd-client"}.
	//
	// +optional
	SecretRef *corev1.LocalObjectReference `json:"secretRef,omitempty"`

	// Prefix of all keys in etcd. Default: /registry. Example: /clusters/demo.
	//
	// +kubebuilder:default="/registry"
	// +kubebuilder:validation:Pattern=`^/.+$`
	// +kubebuilder:validation:MaxLength=512
	Prefix string `json:"prefix,omitempty"`
}

// Service configures how clients reach the API servers.
type Service struct {
	// Type of the Service. Default: ClusterIP. Example: LoadBalancer.
	//
	// +kubebuilder:default=ClusterIP
	// +kubebuilder:validation:Enum=ClusterIP;NodePort;LoadBalancer
	Type corev1.ServiceType `json:"type,omitempty"`

	// Annotations are added to the Service. Annotations of other controllers are kept. Default: none.
	// Example: {"service.beta.kubernetes.io/aws-load-balancer-internal": "true"}.
	//
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`

	// LoadBalancerClass selects the load balancer implementation; only with type LoadBalancer.
	// Default: the hosting cluster's default implementation. Example: example.com/internal-vip.
	//
	// +optional
	LoadBalancerClass *string `json:"loadBalancerClass,omitempty"`

	// LoadBalancerSourceRanges are the CIDRs of clients that the load balancer accepts. Default: all.
	// Example: ["192.0.2.0/24"].
	//
	// +optional
	// +kubebuilder:validation:MaxItems=64
	LoadBalancerSourceRanges []string `json:"loadBalancerSourceRanges,omitempty"`
}

// NetworkPoliciesMode selects whether the operator manages NetworkPolicies.
type NetworkPoliciesMode string

// Modes of NetworkPolicies.
const (
	NetworkPoliciesEnabled  NetworkPoliciesMode = "Enabled"
	NetworkPoliciesDisabled NetworkPoliciesMode = "Disabled"
)

// Scheduling constrains the nodes that pods run on. By default, pods prefer nodes and zones without another replica.
type Scheduling struct {
	// NodeSelector that nodes must match. Default: none. Example: {"node-role.kubernetes.io/control-plane": ""}.
	//
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`

	// Tolerations of the pods. Default: none.
	// Example: [{"key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule"}].
	//
	// +optional
	Tolerations []corev1.Toleration `json:"tolerations,omitempty"`

	// Affinity of the pods. It replaces the default. Default: preferred pod anti-affinity with the cluster's other
	// replicas, by node and by zone. Example: {"nodeAffinity": {...}}.
	//
	// +optional
	Affinity *corev1.Affinity `json:"affinity,omitempty"`

	// TopologySpreadConstraints of the pods. Default: none.
	// Example: [{"maxSkew": 1, "topologyKey": "topology.kubernetes.io/zone", "whenUnsatisfiable": "DoNotSchedule",
	// "labelSelector": {"matchLabels": {"quorate.dev/cluster": "demo"}}}].
	//
	// +optional
	TopologySpreadConstraints []corev1.TopologySpreadConstraint `json:"topologySpreadConstraints,omitempty"`

	// PriorityClassName of the pods. Default: none. Example: system-cluster-critical.
	//
	// +optional
	PriorityClassName string `json:"priorityClassName,omitempty"`
}
