// Package desired builds the objects of an ApiServerCluster and validates its spec. Its functions are pure: they read
// no state other than their arguments. Package reconcile decides when an object is written.
//
// # Ownership of fields
//
// An object of this package contains the fields that the operator owns, and no others. How the operator treats the
// fields of an existing object depends on the kind:
//
//   - Pods are never updated, except for labels and the annotation CertificateHashAnnotation. A pod that was created
//     from another spec is replaced. Outdated compares hashes of the spec's fields (HashesOf) and not pods, so that
//     defaulting, admission plugins, and an operator of another release, which builds pods differently, restart
//     nothing.
//   - Claims are never updated, except for the requested size, labels, annotations and the owner reference. They
//     contain the data.
//   - Secrets get the data of this package. Other labels and annotations are kept.
//   - Services keep fields that the API server allocates, and fields that this package does not set.
//   - Deployments of companions are updated only if the hash of their inputs differs (CompanionHashAnnotation). Only
//     labels and replicas are always updated.
//   - In the pod of a replica, the user may set fields with spec.patches that the operator does not set. checkPatch
//     examines the patch, and checkProtected the result, whose fields of the operator must be unchanged.
//
// # Which cluster an object belongs to
//
// Owns reports which cluster owns an object: by the controller reference or, on objects that the garbage collector must
// not delete, by the annotation ClusterUIDAnnotation. Labels only serve to find objects, because users may copy them.
// Objects in other namespaces, cluster-scoped objects and objects inside the cluster cannot have an owner reference to
// the cluster; they are identified by labels with its name and namespace (RegistrationSelector, NodesSelector,
// ExtensionSelector).
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
	RoleBackup   = "backup" // a pod that creates, deletes or restores a backup

	// EtcdClientLabel has the name of the cluster whose members a backup's pod connects to. The pod has no
	// ClusterLabel, because the Service of the cluster would select it.
	EtcdClientLabel = "quorate.dev/etcd-client"
	// ScheduleLabel has the name of the schedule that has created a backup.
	ScheduleLabel = "quorate.dev/schedule"

	ManagedByLabel = "app.kubernetes.io/managed-by"
	ManagedBy      = "quorate-operator"

	NameLabel    = "app.kubernetes.io/name"
	OperatorName = "quorate-operator" // NameLabel of the operator's pods

	ServerHashAnnotation      = "quorate.dev/server-hash"
	EtcdHashAnnotation        = "quorate.dev/etcd-hash"
	CertificateHashAnnotation = "quorate.dev/certificate-hash"
	// AuthorityHashAnnotation is the annotation of a pod with the hash of the authorities that the pod's etcd has read
	// when it started.
	AuthorityHashAnnotation = "quorate.dev/authority-hash"
	// KeyCreatedAnnotation is the annotation of the service-account Secret with the creation time of its newest key.
	KeyCreatedAnnotation = "quorate.dev/key-created"
	MemberIDAnnotation   = "quorate.dev/member-id" // on claims: ID of the member that has started on the volume
	// LostWritesAnnotation is on claims whose member has acknowledged writes that the other members lack. Its value is
	// the message of the member. The operator never deletes such a claim.
	LostWritesAnnotation = "quorate.dev/acknowledged-writes-lost"
	// LastHealthyWithAnnotation is the annotation of a claim with the runs of the other members' API servers, as name=run,
	// that were ready when the claim's member was last healthy.
	LastHealthyWithAnnotation = "quorate.dev/last-healthy-with"
	// UnprovenAnnotation is the annotation of a claim whose member was removed while it may have had the only copy of
	// acknowledged writes. Its value says why. Such a claim is not deleted.
	UnprovenAnnotation = "quorate.dev/not-compared"
	// FormerMemberAnnotation is the annotation of a claim that was released instead of deleted. Its value is the UID of
	// the cluster that it belonged to.
	FormerMemberAnnotation = "quorate.dev/former-member-of"

	// EndpointsAnnotation is the annotation of the pod of a server with the names of the members that the server connects
	// to.
	EndpointsAnnotation = "quorate.dev/etcd-endpoints"
)

// Ports of replicas.
const (
	SecurePort = 6443
	ClientPort = 2379
	PeerPort   = 2380
)

// Labels returns the labels of all objects of a cluster.
func Labels(cluster *v1alpha1.ApiServerCluster) map[string]string {
	return map[string]string{
		NameLabel: "quorate", "app.kubernetes.io/instance": cluster.Name,
		ManagedByLabel: ManagedBy, ClusterLabel: cluster.Name,
	}
}

// Selector selects all objects of a cluster in its namespace.
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

// MembersDomain returns the DNS domain in which each member has its name.
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

// Endpoint returns the URL of the API for clients in the hosting cluster, without a load balancer.
func Endpoint(cluster *v1alpha1.ApiServerCluster) string {
	return fmt.Sprintf("https://%s.%s.svc:%d", cluster.Name, cluster.Namespace, SecurePort)
}
