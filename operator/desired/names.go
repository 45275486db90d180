// Package desired builds every object that an ApiServerCluster needs, purely from the resource and what was decided
// elsewhere. It reads nothing.
package desired

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"quorate.dev/operator/api/v1alpha1"
)

// Labels and annotations of what the operator owns.
const (
	ClusterLabel = "quorate.dev/cluster"
	RoleLabel    = "quorate.dev/role"
	RoleMember   = "member" // an API server with a member of the embedded etcd
	RoleServer   = "server" // an API server only

	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "quorate-operator"

	NameLabel    = "app.kubernetes.io/name"
	OperatorName = "quorate-operator" // of the operator's own pods

	ServerHashAnnotation      = "quorate.dev/server-hash"
	EtcdHashAnnotation        = "quorate.dev/etcd-hash"
	CertificateHashAnnotation = "quorate.dev/certificate-hash"
	EndpointsAnnotation       = "quorate.dev/etcd-endpoints" // of a server: the members it was given
)

// Ports of a replica.
const (
	SecurePort = 6443
	ClientPort = 2379
	PeerPort   = 2380
)

// Labels of an object of a cluster.
func Labels(cluster *v1alpha1.ApiServerCluster) map[string]string {
	return map[string]string{
		NameLabel: "quorate", "app.kubernetes.io/instance": cluster.Name,
		ManagedByLabel: ManagedBy, ClusterLabel: cluster.Name,
	}
}

// Selector of everything that belongs to a cluster.
func Selector(cluster *v1alpha1.ApiServerCluster) labels.Set {
	return labels.Set{ClusterLabel: cluster.Name}
}

func memberSelector(cluster *v1alpha1.ApiServerCluster) map[string]string {
	return map[string]string{ClusterLabel: cluster.Name, RoleLabel: RoleMember}
}

func serverSelector(cluster *v1alpha1.ApiServerCluster) map[string]string {
	return map[string]string{ClusterLabel: cluster.Name, RoleLabel: RoleServer}
}

// MembersService is the headless Service that gives each member its DNS name.
func MembersService(cluster *v1alpha1.ApiServerCluster) string { return cluster.Name + "-members" }

// MembersDomain is the DNS domain of the members.
func MembersDomain(cluster *v1alpha1.ApiServerCluster) string {
	return MembersService(cluster) + "." + cluster.Namespace + ".svc"
}

// PeerURL of a member.
func PeerURL(cluster *v1alpha1.ApiServerCluster, name string) string {
	return fmt.Sprintf("https://%s.%s:%d", name, MembersDomain(cluster), PeerPort)
}

// ClientURL of a member.
func ClientURL(cluster *v1alpha1.ApiServerCluster, name string) string {
	return fmt.Sprintf("https://%s.%s:%d", name, MembersDomain(cluster), ClientPort)
}

// Endpoint is the URL of the API within the cluster that hosts it.
func Endpoint(cluster *v1alpha1.ApiServerCluster) string {
	return fmt.Sprintf("https://%s.%s.svc:%d", cluster.Name, cluster.Namespace, SecurePort)
}
