package core

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
)

// serviceView shows Services as clients expect them that were stored before a field was introduced, or with one that
// they should not have.
type serviceView struct {
	family corev1.IPFamily // the cluster's default
}

func (v serviceView) complete(external runtime.Object) {
	service, ok := external.(*corev1.Service)
	if !ok {
		return
	}
	spec := &service.Spec
	if spec.ClusterIP != "" && len(spec.ClusterIPs) == 0 {
		spec.ClusterIPs = []string{spec.ClusterIP}
	}
	if spec.Type == corev1.ServiceTypeExternalName {
		spec.InternalTrafficPolicy = nil
		return
	}
	if len(spec.IPFamilies) == 0 {
		v.addFamilies(spec)
	}
}

func (v serviceView) addFamilies(spec *corev1.ServiceSpec) {
	first := cmp.Or(v.family, corev1.IPv4Protocol)
	other := corev1.IPv4Protocol
	if first == corev1.IPv4Protocol {
		other = corev1.IPv6Protocol
	}
	switch {
	case spec.ClusterIP == corev1.ClusterIPNone && len(spec.Selector) == 0:
		spec.IPFamilies = []corev1.IPFamily{first, other}
	case spec.ClusterIP == corev1.ClusterIPNone:
		spec.IPFamilies = []corev1.IPFamily{first}
	default:
		for _, address := range spec.ClusterIPs {
			family := corev1.IPv4Protocol
			if strings.Contains(address, ":") {
				family = corev1.IPv6Protocol
			}
			spec.IPFamilies = append(spec.IPFamilies, family)
		}
	}
	switch len(spec.IPFamilies) {
	case 1:
		spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicySingleStack)
	case 2:
		spec.IPFamilyPolicy = ptr.To(corev1.IPFamilyPolicyRequireDualStack)
	}
}
