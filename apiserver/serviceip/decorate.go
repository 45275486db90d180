package serviceip

import (
	"cmp"

	"k8s.io/apimachinery/pkg/runtime"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"
)

// Decorator returns a function that completes Services stored by earlier releases: it sets fields that these releases
// did not have, and clears internalTrafficPolicy of Services of the type ExternalName. primary is the cluster's default
// family; empty means IPv4. It mirrors upstream's defaultOnRead.
func Decorator(primary api.IPFamily) func(internal runtime.Object) {
	primary = cmp.Or(primary, api.IPv4Protocol)
	return func(internal runtime.Object) {
		if service := asService(internal); service != nil {
			defaultOnRead(service, primary)
		}
	}
}

func defaultOnRead(service *api.Service, primary api.IPFamily) {
	spec := &service.Spec
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if spec.Type == api.ServiceTypeExternalName {
		spec.InternalTrafficPolicy = nil
		return
	}
	if len(spec.IPFamilies) == 0 {
		defaultFamiliesOnRead(spec, primary)
	}
}

func defaultFamiliesOnRead(spec *api.ServiceSpec, primary api.IPFamily) {
	switch {
	case spec.ClusterIP == api.ClusterIPNone && len(spec.Selector) == 0:
		spec.IPFamilies = []api.IPFamily{primary, otherFamily(primary)}
	case spec.ClusterIP == api.ClusterIPNone:
		spec.IPFamilies = []api.IPFamily{primary}
	default:
		for _, address := range spec.ClusterIPs {
			family := api.IPv4Protocol
			if familyOf(address) == api.IPv6Protocol {
				family = api.IPv6Protocol
			}
			spec.IPFamilies = append(spec.IPFamilies, family)
		}
	}
	switch len(spec.IPFamilies) {
	case 1:
		spec.IPFamilyPolicy = ptr.To(api.IPFamilyPolicySingleStack)
	case 2:
		spec.IPFamilyPolicy = ptr.To(api.IPFamilyPolicyRequireDualStack)
	}
}
