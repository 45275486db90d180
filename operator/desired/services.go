package desired

import (
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
)

// Services returns the Service for clients and, with an embedded etcd, the headless Service for members. The latter
// publishes the addresses of unready pods, because members must resolve each other before they can become ready.
func Services(cluster *v1alpha1.ApiServerCluster) []*corev1.Service {
	services := []*corev1.Service{clientService(cluster)}
	if !cluster.ExternalEtcd() {
		services = append(services, membersService(cluster))
	}
	return services
}

func clientService(cluster *v1alpha1.ApiServerCluster) *corev1.Service {
	spec := cluster.Spec.Service
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: cluster.Name, Namespace: cluster.Namespace, Labels: Labels(cluster), Annotations: spec.Annotations,
		},
		Spec: corev1.ServiceSpec{
			Type: serviceType(cluster), Selector: Selector(cluster), Ports: []corev1.ServicePort{port("https", SecurePort)},
			LoadBalancerClass: spec.LoadBalancerClass, LoadBalancerSourceRanges: spec.LoadBalancerSourceRanges,
		},
	}
}

func serviceType(cluster *v1alpha1.ApiServerCluster) corev1.ServiceType {
	if cluster.Spec.Service.Type == "" {
		return corev1.ServiceTypeClusterIP
	}
	return cluster.Spec.Service.Type
}

func membersService(cluster *v1alpha1.ApiServerCluster) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: MembersService(cluster), Namespace: cluster.Namespace, Labels: Labels(cluster)},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone, PublishNotReadyAddresses: true,
			Selector: memberSelector(cluster),
			Ports:    []corev1.ServicePort{port("peer", PeerPort), port("client", ClientPort), port("https", SecurePort)},
		},
	}
}

func port(name string, number int32) corev1.ServicePort {
	return corev1.ServicePort{Name: name, Port: number, TargetPort: intstr.FromInt32(number), Protocol: corev1.ProtocolTCP}
}

// Budget returns a PodDisruptionBudget that protects the quorum of the present and of the desired voters or, with an
// external etcd, permits one disruption at a time. It returns nil for a single voter or replica, which a budget would
// make impossible to evict.
func Budget(cluster *v1alpha1.ApiServerCluster, voters int) *policyv1.PodDisruptionBudget {
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: cluster.Name, Namespace: cluster.Namespace, Labels: Labels(cluster)},
		Spec:       policyv1.PodDisruptionBudgetSpec{UnhealthyPodEvictionPolicy: ptr.To(policyv1.AlwaysAllow)},
	}
	voters = max(voters, cluster.VoterCount())
	switch {
	case cluster.ExternalEtcd() && cluster.ReplicaCount() > 1:
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: Selector(cluster)}
		budget.Spec.MaxUnavailable = ptr.To(intstr.FromInt32(1))
	case !cluster.ExternalEtcd() && voters > 1:
		budget.Spec.Selector = &metav1.LabelSelector{MatchLabels: memberSelector(cluster)}
		budget.Spec.MinAvailable = ptr.To(intstr.FromInt(voters/2 + 1))
	default:
		return nil
	}
	return budget
}
