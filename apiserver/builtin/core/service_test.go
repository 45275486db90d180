package core

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

func TestServicesFromBeforeAreShownComplete(t *testing.T) {
	selector := map[string]string{"app": "web"}
	for name, c := range map[string]struct {
		stored   corev1.ServiceSpec
		families []corev1.IPFamily
		policy   corev1.IPFamilyPolicy
	}{
		"address":                   {corev1.ServiceSpec{ClusterIP: "10.0.0.1"}, []corev1.IPFamily{"IPv4"}, "SingleStack"},
		"headless":                  {corev1.ServiceSpec{ClusterIP: "None", Selector: selector}, []corev1.IPFamily{"IPv6"}, "SingleStack"},
		"headless without selector": {corev1.ServiceSpec{ClusterIP: "None"}, []corev1.IPFamily{"IPv6", "IPv4"}, "RequireDualStack"},
		"external name":             {corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, InternalTrafficPolicy: ptr.To(corev1.ServiceInternalTrafficPolicyCluster)}, nil, ""},
	} {
		service := &corev1.Service{Spec: c.stored}
		serviceView{corev1.IPv6Protocol}.complete(service)
		if !slices.Equal(service.Spec.IPFamilies, c.families) || ptr.Deref(service.Spec.IPFamilyPolicy, "") != c.policy {
			t.Errorf("%s: %v %v, want %v %v", name, service.Spec.IPFamilies, service.Spec.IPFamilyPolicy, c.families, c.policy)
		}
		if c.stored.Type == corev1.ServiceTypeExternalName && service.Spec.InternalTrafficPolicy != nil {
			t.Errorf("%s: traffic policy %v", name, *service.Spec.InternalTrafficPolicy)
		}
	}
}
