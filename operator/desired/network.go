package desired

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
)

// NetworkPolicies returns the policies for connections to the pods of a cluster. The API port accepts connections of
// all clients, like the Service. The peer port accepts members; the client port accepts replicas without a member, the
// pods of backups, and the operator. Egress is not restricted, because API servers connect to kubelets, webhooks and
// extension API servers at any address.
//
// The pods of the operator are selected by namespace and label. An empty namespace means that the operator does not run
// as a pod of the hosting cluster. The client port then accepts connections from everywhere, and only certificates
// protect it.
func NetworkPolicies(cluster *v1alpha1.ApiServerCluster, operatorNamespace string) []*networkingv1.NetworkPolicy {
	if cluster.Spec.NetworkPolicies == v1alpha1.NetworkPoliciesDisabled {
		return nil
	}
	policies := []*networkingv1.NetworkPolicy{networkPolicy(cluster, cluster.Name, Selector(cluster), ingress(SecurePort))}
	if cluster.ExternalEtcd() {
		return policies
	}
	clients := []networkingv1.NetworkPolicyPeer{
		pods(serverSelector(cluster)), pods(map[string]string{EtcdClientLabel: cluster.Name}),
		operatorPods(operatorNamespace),
	}
	if operatorNamespace == "" {
		clients = nil // all
	}
	return append(policies, networkPolicy(cluster, MembersService(cluster), memberSelector(cluster),
		ingress(PeerPort, pods(memberSelector(cluster))), ingress(ClientPort, clients...)))
}

// NetworkPolicyNames returns the names of all policies that a cluster may have.
func NetworkPolicyNames(cluster *v1alpha1.ApiServerCluster) []string {
	return []string{cluster.Name, MembersService(cluster)}
}

func networkPolicy(
	cluster *v1alpha1.ApiServerCluster, name string, selector map[string]string,
	rules ...networkingv1.NetworkPolicyIngressRule,
) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: cluster.Namespace, Labels: Labels(cluster)},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: selector}, Ingress: rules,
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
		},
	}
}

// ingress returns a rule that permits connections to a port from the given peers, or from everywhere if there are none.
func ingress(port int32, peers ...networkingv1.NetworkPolicyPeer) networkingv1.NetworkPolicyIngressRule {
	return networkingv1.NetworkPolicyIngressRule{
		Ports: []networkingv1.NetworkPolicyPort{{Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(intstr.FromInt32(port))}},
		From:  peers,
	}
}

// pods returns a peer that selects pods in the namespace of the policy.
func pods(selector map[string]string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: selector}}
}

func operatorPods(namespace string) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: namespace}},
		PodSelector:       &metav1.LabelSelector{MatchLabels: map[string]string{NameLabel: OperatorName}},
	}
}
