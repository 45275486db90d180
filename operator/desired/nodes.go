package desired

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	clientcmd "k8s.io/client-go/tools/clientcmd/api/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/api/v1alpha1"
)

const (
	joining     = "nodes" // value of RegistrationLabel on objects that nodes need to join
	clusterInfo = "cluster-info"

	kubernetesService = "kubernetes"
	sliceManager      = "operator.quorate.dev" // value of discoveryv1.LabelManagedBy

	bootstrappers = "system:bootstrappers" // group of users with a bootstrap token
	nodes         = "system:nodes"
)

// NodesSelector selects the objects inside a cluster that nodes need to join.
func NodesSelector(cluster *v1alpha1.ApiServerCluster) labels.Set {
	return labels.Set{RegistrationLabel: joining, ClusterLabel: cluster.Name, NamespaceLabel: cluster.Namespace}
}

// NodeBindings returns the bindings inside a cluster for kubelets that join with a bootstrap token. They permit a
// kubelet to request a client certificate and to renew it, and make the controller manager approve both.
func NodeBindings(cluster *v1alpha1.ApiServerCluster) []*rbacv1.ClusterRoleBinding {
	var bindings []*rbacv1.ClusterRoleBinding
	for _, entry := range []struct{ name, role, group string }{
		{"quorate:node-bootstrapper", "system:node-bootstrapper", bootstrappers},
		{"quorate:node-approve-bootstrap", "system:certificates.k8s.io:certificatesigningrequests:nodeclient", bootstrappers},
		{"quorate:node-approve-renewal", "system:certificates.k8s.io:certificatesigningrequests:selfnodeclient", nodes},
	} {
		bindings = append(bindings, &rbacv1.ClusterRoleBinding{
			ObjectMeta: nodesMeta(cluster, "", entry.name),
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: entry.role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.GroupKind, Name: entry.group}},
		})
	}
	return bindings
}

// ClusterInfo returns the ConfigMap kube-public/cluster-info, from which nodes learn the URL and the authority of the
// cluster, as with kubeadm. The controller manager adds signatures by the bootstrap tokens.
func ClusterInfo(cluster *v1alpha1.ApiServerCluster, server string, trusted []byte) (*corev1.ConfigMap, error) {
	text, err := yaml.Marshal(clientcmd.Config{
		APIVersion: "v1", Kind: "Config",
		Clusters: []clientcmd.NamedCluster{{Cluster: clientcmd.Cluster{Server: server, CertificateAuthorityData: trusted}}},
	})
	if err != nil {
		return nil, err
	}
	return &corev1.ConfigMap{
		ObjectMeta: nodesMeta(cluster, metav1.NamespacePublic, clusterInfo),
		Data:       map[string]string{KubeconfigKey: string(text)},
	}, nil
}

// ClusterInfoAccess returns the Role and the RoleBinding that permit anonymous users to read ClusterInfo.
func ClusterInfoAccess(cluster *v1alpha1.ApiServerCluster) (*rbacv1.Role, *rbacv1.RoleBinding) {
	meta := nodesMeta(cluster, metav1.NamespacePublic, "quorate:cluster-info")
	return &rbacv1.Role{
			ObjectMeta: meta,
			Rules: []rbacv1.PolicyRule{{
				APIGroups: []string{""}, Resources: []string{"configmaps"},
				ResourceNames: []string{clusterInfo}, Verbs: []string{"get"},
			}},
		}, &rbacv1.RoleBinding{
			ObjectMeta: meta,
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: meta.Name},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "system:anonymous"}},
		}
}

// KubernetesSlices returns the EndpointSlices of the Service default/kubernetes, which pods on the cluster's nodes use.
// They contain the IP addresses of the load balancer, in one slice for each address family.
func KubernetesSlices(cluster *v1alpha1.ApiServerCluster, service *corev1.Service) []*discoveryv1.EndpointSlice {
	if service == nil {
		return nil
	}
	var endpointSlices []*discoveryv1.EndpointSlice
	for _, family := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6} {
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  nodesMeta(cluster, metav1.NamespaceDefault, "kubernetes-"+strings.ToLower(string(family))),
			AddressType: family,
			Ports: []discoveryv1.EndpointPort{{
				Name: ptr.To("https"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](SecurePort),
			}},
		}
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			if ingress.IP != "" && addressType(ingress.IP) == family {
				slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
					Addresses: []string{ingress.IP}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
				})
			}
		}
		if len(slice.Endpoints) == 0 {
			continue
		}
		slice.Labels = merged(slice.Labels, map[string]string{
			discoveryv1.LabelServiceName: kubernetesService, discoveryv1.LabelManagedBy: sliceManager,
		})
		endpointSlices = append(endpointSlices, slice)
	}
	return endpointSlices
}

// kubernetesAddresses returns the IP address of the Service default/kubernetes, for which the serving certificate has
// to be valid if nodes can join. It returns nil while spec.extraArgs is invalid.
func kubernetesAddresses(cluster *v1alpha1.ApiServerCluster) []string {
	if !cluster.RunsControllerManager() {
		return nil
	}
	api := config.Default().API
	if value, set := cluster.Spec.ExtraArgs["service-cluster-ip-range"]; set {
		api.ServiceClusterIPRange = value
	}
	ranges, err := api.ServiceRanges()
	if err != nil {
		return nil
	}
	return []string{ranges[0].Addr().Next().String()}
}

func nodesMeta(cluster *v1alpha1.ApiServerCluster, namespace, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: merged(Labels(cluster), NodesSelector(cluster))}
}
