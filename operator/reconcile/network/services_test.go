package network

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// defaulted returns a Service as an API server stores it, with defaulted fields.
func defaulted(service *corev1.Service) *corev1.Service {
	policy := corev1.ServiceInternalTrafficPolicyCluster
	service.Annotations = map[string]string{"example.com/of-another-controller": "kept"}
	service.Spec.SessionAffinity, service.Spec.InternalTrafficPolicy = corev1.ServiceAffinityNone, &policy
	if service.Spec.ClusterIP == "" {
		service.Spec.ClusterIP = "10.0.0.7"
	}
	service.Spec.ClusterIPs, service.Spec.IPFamilies =
		[]string{service.Spec.ClusterIP}, []corev1.IPFamily{corev1.IPv4Protocol}
	if service.Spec.Type != corev1.ServiceTypeClusterIP {
		service.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyCluster
		for i := range service.Spec.Ports {
			service.Spec.Ports[i].NodePort = 30000 + int32(i)
		}
	}
	return service
}

// TestRestoredService edits fields that the operator sets, and checks that they are restored and that fields of other
// controllers are kept.
func TestRestoredService(t *testing.T) {
	edits := map[string]func(*corev1.Service){
		"nothing":  func(*corev1.Service) {},
		"labels":   func(s *corev1.Service) { delete(s.Labels, desired.ClusterLabel) },
		"selector": func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "other"} },
		"name of a port": func(s *corev1.Service) {
			s.Spec.Ports[0].Name = "other"
		},
		"ports": func(s *corev1.Service) {
			s.Spec.Ports[0].TargetPort = intstr.FromInt32(80)
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "more", Port: 80})
		},
		"unready addresses": func(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = !s.Spec.PublishNotReadyAddresses },
		"source ranges":     func(s *corev1.Service) { s.Spec.LoadBalancerSourceRanges = []string{"192.0.2.0/24"} },
		"type":              func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeLoadBalancer },
		"external name": func(s *corev1.Service) {
			s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, "example.org"
		},
	}
	for _, kind := range []corev1.ServiceType{corev1.ServiceTypeClusterIP, corev1.ServiceTypeNodePort} {
		cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo"}}
		cluster.Spec.Service.Type = kind
		for name, edit := range edits {
			for i, wanted := range desired.Services(cluster) {
				stored := defaulted(wanted.DeepCopy())
				edited := stored.DeepCopy()
				edit(edited)
				if got := restoredService(edited, desired.Services(cluster)[i]); !equality.Semantic.DeepEqual(got, stored) {
					t.Errorf("%s, %s of %s: got %+v, want %+v", kind, name, wanted.Name, got.Spec, stored.Spec)
				}
			}
		}
	}
}
