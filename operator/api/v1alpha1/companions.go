package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
)

// CompanionsAvailable is the condition that is true when every companion has the desired number of available pods. It
// is absent without companions.
const CompanionsAvailable = "CompanionsAvailable"

// ControllersMode selects whether the API servers run controllers.
type ControllersMode string

// Modes of controllers.
const (
	ControllersEmbedded ControllersMode = "Embedded"
	ControllersNone     ControllersMode = "None"
)

// Companions are components of a Kubernetes control plane that the operator runs as Deployments of the hosting cluster,
// in addition to the API servers. Worker nodes need them.
type Companions struct {
	// KubeControllerManager runs Kubernetes' controllers and signs the certificates of kubelets. With it, the operator
	// publishes the objects that nodes need to join. It replaces the embedded controllers. Default: unset, it does not
	// run. Example: {"image": "registry.k8s.io/kube-controller-manager:v1.37.2"}.
	//
	// +optional
	KubeControllerManager *Companion `json:"kubeControllerManager,omitempty"`

	// KubeScheduler assigns pods to nodes. Default: unset, it does not run.
	// Example: {"image": "registry.k8s.io/kube-scheduler:v1.37.2"}.
	//
	// +optional
	KubeScheduler *Companion `json:"kubeScheduler,omitempty"`
}

// Companion configures the Deployment of a companion. The companion's pods are constrained by spec.scheduling and pull
// their image with spec.imagePullSecrets.
type Companion struct {
	// Image is the container image. It must have the minor version of the API servers or the preceding minor version.
	// Required. Example: registry.k8s.io/kube-scheduler:v1.37.2.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	Image string `json:"image"`

	// ImagePullPolicy of the pods. Default: IfNotPresent. Example: Always.
	//
	// +optional
	// +kubebuilder:validation:Enum=Always;IfNotPresent;Never
	ImagePullPolicy corev1.PullPolicy `json:"imagePullPolicy,omitempty"`

	// Replicas is the number of pods, 0 to 10. The pods elect a leader, the others are on standby. A hibernated cluster
	// runs no companions. Default: 2. Example: 1.
	//
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=10
	Replicas *int32 `json:"replicas,omitempty"`

	// ExtraArgs are additional flags, by name without leading dashes. Values are literal: $(NAME) is not expanded. Flags
	// that the operator sets and flags that need a file are rejected. Default: none. Example: {"kube-api-qps": "50"}.
	//
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(name, name.matches('^[a-z0-9]+(-[a-z0-9]+)*$'))",message="flag names have no leading dashes: kube-api-qps"
	// +kubebuilder:validation:XValidation:rule="!self.exists(name, name in ['authentication-kubeconfig','authorization-kubeconfig','bind-address','cert-dir','config','help','kubeconfig','master','permit-address-sharing','permit-port-sharing','secure-port','use-service-account-credentials','version','write-config-to'] || name.startsWith('leader-elect') || name.startsWith('requestheader-'))",message="this flag is set by the operator",messageExpression="'this flag is set by the operator:' + ('authentication-kubeconfig' in self ? ' authentication-kubeconfig' : '') + ('authorization-kubeconfig' in self ? ' authorization-kubeconfig' : '') + ('bind-address' in self ? ' bind-address' : '') + ('cert-dir' in self ? ' cert-dir' : '') + ('config' in self ? ' config' : '') + ('help' in self ? ' help' : '') + ('kubeconfig' in self ? ' kubeconfig' : '') + ('master' in self ? ' master' : '') + ('permit-address-sharing' in self ? ' permit-address-sharing' : '') + ('permit-port-sharing' in self ? ' permit-port-sharing' : '') + ('secure-port' in self ? ' secure-port' : '') + ('use-service-account-credentials' in self ? ' use-service-account-credentials' : '') + ('version' in self ? ' version' : '') + ('write-config-to' in self ? ' write-config-to' : '') + (self.exists(name, name.startsWith('leader-elect')) ? ' leader-elect*' : '') + (self.exists(name, name.startsWith('requestheader-')) ? ' requestheader-*' : '')"
	// +kubebuilder:validation:XValidation:rule="!self.exists(name, name.endsWith('-file') || name.endsWith('-dir') || name.endsWith('-manifest'))",message="this flag is not available: it needs a file that the pod does not have"
	ExtraArgs map[string]string `json:"extraArgs,omitempty"`

	// Resources of each pod. Default: requests of 100m CPU and 128Mi memory, no limits.
	// Example: {"requests": {"cpu": "200m", "memory": "256Mi"}}.
	//
	// +optional
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`
}

// CompanionStatus is the state of a companion.
type CompanionStatus struct {
	// Name of the companion. Example: kube-scheduler.
	Name string `json:"name"`

	// Replicas is the desired number of pods. Example: 2.
	Replicas int32 `json:"replicas"`

	// AvailableReplicas is the number of available pods with the current configuration. Example: 2.
	AvailableReplicas int32 `json:"availableReplicas"`

	// Message describes why the companion is not available. Empty when it is. Example: 1 of 2 pods are available.
	//
	// +optional
	Message string `json:"message,omitempty"`
}

const defaultCompanionReplicas = 2

// ReplicaCount returns the desired number of pods of a companion of a cluster.
func (c *Companion) ReplicaCount(cluster *ApiServerCluster) int32 {
	switch {
	case cluster.Hibernated():
		return 0
	case c.Replicas == nil:
		return defaultCompanionReplicas
	}
	return *c.Replicas
}

// EmbeddedControllers reports whether the API servers run controllers.
func (c *ApiServerCluster) EmbeddedControllers() bool {
	if c.Spec.Controllers == "" {
		return !c.RunsControllerManager()
	}
	return c.Spec.Controllers != ControllersNone
}

// RunsControllerManager reports whether the operator runs a kube-controller-manager as a companion. Nodes can only join
// such a cluster.
func (c *ApiServerCluster) RunsControllerManager() bool {
	return c.Spec.Companions.KubeControllerManager != nil
}
