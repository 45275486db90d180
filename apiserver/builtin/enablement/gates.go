package enablement

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/pkg/features"
)

// Gate returns the feature gate without which a built-in resource is not served in any version. It is empty for the
// resources that are always served.
func Gate(resource schema.GroupResource) featuregate.Feature {
	switch resource {
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "clustertrustbundles"}:
		return features.ClusterTrustBundle
	case schema.GroupResource{Group: "certificates.k8s.io", Resource: "podcertificaterequests"}:
		return features.PodCertificateRequest
	case schema.GroupResource{Group: "lifecycle.k8s.io", Resource: "evictions"},
		schema.GroupResource{Group: "lifecycle.k8s.io", Resource: "evictionrequests"}:
		return features.EvictionRequestAPI
	case schema.GroupResource{Group: "scheduling.k8s.io", Resource: "compositepodgroups"}:
		return features.CompositePodGroup
	case schema.GroupResource{Group: "scheduling.k8s.io", Resource: "podgroups"},
		schema.GroupResource{Group: "scheduling.k8s.io", Resource: "workloads"}:
		return features.GenericWorkload
	case schema.GroupResource{Group: "storagemigration.k8s.io", Resource: "storageversionmigrations"}:
		return features.StorageVersionMigrator
	}
	return ""
}

// offers reports whether the feature gates permit to serve a resource.
func (e Emulation) offers(resource schema.GroupResource) bool {
	gate := Gate(resource)
	return gate == "" || e.Gates == nil || e.Gates.Enabled(gate)
}
