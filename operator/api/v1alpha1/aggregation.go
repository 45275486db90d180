package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Aggregation configures the API groups that extension API servers serve in the cluster (API aggregation).
type Aggregation struct {
	// APIServices are API groups and versions that extension API servers serve in this cluster. For each entry, the
	// operator maintains an APIService, a Service and an EndpointSlice inside the cluster, and deletes them when you
	// remove the entry. The first entry restarts the API servers, one at a time, with --enable-aggregator-routing.
	// Default: none. Example: [{"group": "metrics.k8s.io", "version": "v1beta1", "service": {"name": "metrics-server",
	// "namespace": "monitoring"}, "caBundle": {"secretRef": {"name": "metrics-ca"}}}].
	//
	// +optional
	// +listType=map
	// +listMapKey=group
	// +listMapKey=version
	// +kubebuilder:validation:MaxItems=64
	APIServices []AggregatedAPIService `json:"apiServices,omitempty"`
}

// AggregatedAPIService is an API group and version that an extension API server serves.
//
// +kubebuilder:validation:XValidation:rule="has(self.service) != has(self.address)",message="exactly one of service and address is required"
// +kubebuilder:validation:XValidation:rule="!(has(self.caBundle) && self.?insecureSkipTLSVerify.orValue(false))",message="caBundle and insecureSkipTLSVerify are mutually exclusive"
type AggregatedAPIService struct {
	// Group is the API group. Required. Example: metrics.k8s.io.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$`
	Group string `json:"group"`

	// Version of the API group. Required. Example: v1beta1.
	//
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Version string `json:"version"`

	// GroupPriorityMinimum is the groupPriorityMinimum of the APIService: clients prefer groups with a higher number when
	// a resource name exists in several. Default: 1000. Example: 100.
	//
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=20000
	GroupPriorityMinimum int32 `json:"groupPriorityMinimum,omitempty"`

	// VersionPriority is the versionPriority of the APIService: clients prefer versions of the group with a higher number.
	// Default: 15. Example: 100.
	//
	// +kubebuilder:default=15
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	VersionPriority int32 `json:"versionPriority,omitempty"`

	// Service is the Service of the hosting cluster through which the API servers reach the extension API server, by the
	// Service's DNS name. Default: none.
	// Example: {"name": "metrics-server", "namespace": "monitoring", "port": 443}.
	//
	// +optional
	Service *HostService `json:"service,omitempty"`

	// Address is the DNS name or IP address and the port of the extension API server. Default: none.
	// Example: metrics.example.org:443.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=260
	// +kubebuilder:validation:Pattern=`^([a-z0-9.-]+|\[[0-9a-f:.]+\]):[0-9]+$`
	Address string `json:"address,omitempty"`

	// ServiceRef names the Service inside this cluster that the operator creates. The certificate of the extension API
	// server must be valid for NAME.NAMESPACE.svc. The namespace is created if it does not exist, and never deleted.
	// Default: the name and namespace of service; with address, VERSION-GROUP in kube-system, with dots replaced by
	// dashes.
	// Example: {"name": "metrics-server", "namespace": "kube-system"}.
	//
	// +optional
	ServiceRef *ServiceReference `json:"serviceRef,omitempty"`

	// CABundle refers to the certificate authorities that verify the certificate of the extension API server. The operator
	// applies changes immediately. Default: the authorities of the API servers' image.
	// Example: {"secretRef": {"name": "metrics-ca"}}.
	//
	// +optional
	CABundle *CABundleSource `json:"caBundle,omitempty"`

	// InsecureSkipTLSVerify disables the verification of the extension API server's certificate. Default: false.
	// Example: true.
	//
	// +optional
	InsecureSkipTLSVerify bool `json:"insecureSkipTLSVerify,omitempty"`
}

// HostService names a Service of the hosting cluster.
type HostService struct {
	// Name of the Service. Required. Example: metrics-server.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Namespace of the Service. Default: the namespace of the ApiServerCluster. Example: monitoring.
	//
	// +optional
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace,omitempty"`

	// Port of the Service. Default: 443. Example: 8443.
	//
	// +kubebuilder:default=443
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=65535
	Port int32 `json:"port,omitempty"`
}

// ServiceReference names a Service inside the cluster.
type ServiceReference struct {
	// Name of the Service. Required. Example: metrics-server.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Namespace of the Service. Required. Example: kube-system.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
}

// CABundleSource names PEM certificates in a Secret or a ConfigMap of the ApiServerCluster's namespace.
//
// +kubebuilder:validation:XValidation:rule="has(self.secretRef) != has(self.configMapRef)",message="exactly one of secretRef and configMapRef is required"
type CABundleSource struct {
	// SecretRef names a Secret. Default: none. Example: {"name": "metrics-ca"}.
	//
	// +optional
	SecretRef *corev1.LocalObjectReference `json:"secretRef,omitempty"`

	// ConfigMapRef names a ConfigMap. Default: none. Example: {"name": "metrics-ca"}.
	//
	// +optional
	ConfigMapRef *corev1.LocalObjectReference `json:"configMapRef,omitempty"`

	// Key of the certificates in the Secret or ConfigMap. Default: ca.crt. Example: ca-bundle.crt.
	//
	// +kubebuilder:default="ca.crt"
	// +kubebuilder:validation:MaxLength=253
	Key string `json:"key,omitempty"`
}

// APIServiceStatus is the state of an APIService that the operator manages.
type APIServiceStatus struct {
	// Name of the APIService. Example: v1beta1.metrics.k8s.io.
	Name string `json:"name"`

	// Available is the condition Available of the APIService, or Unknown before it exists. Example: "True".
	//
	// +kubebuilder:validation:Enum="True";"False";Unknown
	Available metav1.ConditionStatus `json:"available"`

	// Reason is why the APIService is or is not available, in CamelCase. Example: Passed.
	//
	// +optional
	Reason string `json:"reason,omitempty"`

	// Message has details of the reason. Example: all checks passed.
	//
	// +optional
	Message string `json:"message,omitempty"`
}
