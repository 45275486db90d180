package v1alpha1

// Mode selects the API that the API servers of a cluster serve: the complete Kubernetes API, or API groups of the
// hosting cluster.
type Mode string

// Modes of a cluster.
const (
	ModeCluster   Mode = "Cluster"
	ModeExtension Mode = "Extension"
)

// Extension configures a cluster in mode Extension, which serves API groups to its host, the hosting cluster.
type Extension struct {
	// Groups are the API groups that the cluster serves. Their CustomResourceDefinitions are created in the cluster, with
	// its administrator's kubeconfig. Required in mode Extension. Default: none.
	// Example: [{"name": "reports.example.com", "versions": ["v1"]}].
	//
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Groups []ExtensionGroup `json:"groups,omitempty"`
}

// ExtensionGroup is an API group that the cluster serves to its host.
type ExtensionGroup struct {
	// Name of the group, which must contain a dot. Required. Example: reports.example.com.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)+$`
	// +kubebuilder:validation:XValidation:rule="self != 'apiextensions.k8s.io'",message="apiextensions.k8s.io cannot be served to the host"
	Name string `json:"name"`

	// Versions of the group, the preferred version first. For each version, the operator creates an APIService in the host
	// when a ready API server serves the version. Required.
	// Example: ["v1", "v1beta1"].
	//
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^[a-z]([-a-z0-9]*[a-z0-9])?$`
	Versions []string `json:"versions"`

	// GroupPriorityMinimum is the groupPriorityMinimum of the APIServices: clients prefer groups with a higher number when
	// a resource name exists in several. Default: 1000. Example: 100.
	//
	// +kubebuilder:default=1000
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=20000
	GroupPriorityMinimum int32 `json:"groupPriorityMinimum,omitempty"`
}

// IsExtension reports whether the cluster serves API groups to its host.
func (c *ApiServerCluster) IsExtension() bool { return c.Spec.Mode == ModeExtension }
