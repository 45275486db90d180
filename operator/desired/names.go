// Package desired builds the objects of an ApiServerCluster, and validates its spec. Its functions are pure: they read
// no cluster state other than their arguments.
package desired

import (
	"fmt"

	"k8s.io/apimachinery/pkg/labels"

	"quorate.dev/operator/api/v1alpha1"
)

// Labels and annotations of objects that the operator owns.
const (
	ClusterLabel = "quorate.dev/cluster"
	RoleLabel    = "quorate.dev/role"
	RoleMember   = "member" // an API server with an embedded etcd member
	RoleServer   = "server" // an API server without etcd
	RoleBackup   = "backup" // creates, deletes or restores a backup

	// EtcdClientLabel is the name of the cluster whose members a backup's pod connects to. The pod does not have
	// ClusterLabel, which the Service selects.
	EtcdClientLabel = "quorate.dev/etcd-client"
	// ScheduleLabel is the name of the schedule that created a backup.
	ScheduleLabel = "quorate.dev/schedule"

	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "quorate-operator"

	NameLabel    = "app.kubernetes.io/name"
	OperatorName = "quorate-operator" // NameLabel of the operator's pods

	ServerHashAnnotation      = "quorate.dev/server-hash"
	EtcdHashAnnotation        = "quorate.dev/etcd-hash"
	CertificateHashAnnotation = "quorate.dev/certificate-hash"
	AuthorityHashAnnotation   = "quorate.dev/authority-hash" // of the authorities that the pod's etcd has read
	KeyCreatedAnnotation      = "quorate.dev/key-created"    // of the service-account Secret: creation of the newest key
	MemberIDAnnotation        = "quorate.dev/member-id"      // of a claim: etcd's ID of the member that has started on the volume
	EndpointsAnnotation       = "quorate.dev/etcd-endpoints" // of a server: names of the members that it connects to
)

// Ports of a replica.
const (
	SecurePort = 6443
	ClientPort = 2379
	PeerPort   = 2380
)

// Labels returns the labels of an object of a cluster.
func Labels(cluster *v1alpha1.ApiServerCluster) map[string]string {
	return map[string]string{
		NameLabel: "quorate", "app.kubernetes.io/instance": cluster.Name,
		ManagedByLabel: ManagedBy, ClusterLabel: cluster.Name,
	}
}

// Selector returns the labels that select all objects of a cluster.
func Selector(cluster *v1alpha1.ApiServerCluster) labels.Set {
	return labels.Set{ClusterLabel: cluster.Name}
}

func memberSelector(cluster *v1alpha1.ApiServerCluster) map[string]string {
	return map[string]string{ClusterLabel: cluster.Name, RoleLabel: RoleMember}
}

func serverSelector(cluster *v1alpha1.ApiServerCluster) map[string]string {
	return map[string]string{ClusterLabel: cluster.Name, RoleLabel: RoleServer}
}

// MembersService returns the name of the headless Service that gives each member a DNS name.
func MembersService(cluster *v1alpha1.ApiServerCluster) string { return cluster.Name + "-members" }

// MembersDomain returns the DNS domain of the members.
func MembersDomain(cluster *v1alpha1.ApiServerCluster) string {
	return MembersService(cluster) + "." + cluster.Namespace + ".svc"
}

// PeerURL returns the peer URL of a member.
func PeerURL(cluster *v1alpha1.ApiServerCluster, name string) string {
	return fmt.Sprintf("https://%s.%s:%d", name, MembersDomain(cluster), PeerPort)
}

// ClientURL returns the client URL of a member.
func ClientURL(cluster *v1alpha1.ApiServerCluster, name string) string {
	return fmt.Sprintf("https://%s.%s:%d", name, MembersDomain(cluster), ClientPort)
}

// Endpoint returns the URL of the API for clients in the hosting cluster.
func Endpoint(cluster *v1alpha1.ApiServerCluster) string {
	return fmt.Sprintf("https://%s.%s.svc:%d", cluster.Name, cluster.Namespace, SecurePort)
}
