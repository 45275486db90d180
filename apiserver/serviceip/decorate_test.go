package serviceip

import (
	"slices"
	"testing"

	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"
)

func TestServicesFromBeforeAreShownComplete(t *testing.T) {
	selector := map[string]string{"app": "web"}
	for name, c := range map[string]struct {
		stored   api.ServiceSpec
		families []api.IPFamily
		policy   api.IPFamilyPolicy
	}{
		"address": {api.ServiceSpec{ClusterIP: "10.0.0.1"}, []api.IPFamily{"IPv4"}, "SingleStack"},
		"headless": {
			api.ServiceSpec{ClusterIP: "None", Selector: selector}, []api.IPFamily{"IPv6"}, "SingleStack",
		},
		"headless without selector": {api.ServiceSpec{ClusterIP: "None"}, []api.IPFamily{"IPv6", "IPv4"}, "RequireDualStack"},
		"external name": {api.ServiceSpec{
			Type: api.ServiceTypeExternalName, InternalTrafficPolicy: ptr.To(api.ServiceInternalTrafficPolicyCluster),
		}, nil, ""},
	} {
		service := &api.Service{Spec: c.stored}
		Decorator(api.IPv6Protocol)(service)
		if !slices.Equal(service.Spec.IPFamilies, c.families) || ptr.Deref(service.Spec.IPFamilyPolicy, "") != c.policy {
			t.Errorf("%s: %v %v, want %v %v", name, service.Spec.IPFamilies, service.Spec.IPFamilyPolicy, c.families, c.policy)
		}
		if c.stored.Type == api.ServiceTypeExternalName && service.Spec.InternalTrafficPolicy != nil {
			t.Errorf("%s: traffic policy %v", name, *service.Spec.InternalTrafficPolicy)
		}
	}
}
