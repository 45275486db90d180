// Package companions maintains the components that run next to the API servers of a cluster, the controller manager and
// the scheduler: their Deployments and Secrets, and the objects inside the cluster that nodes need to join.
//
// # Decisions
//
//   - When a companion may be created: once an API server is ready, because companions exit if they cannot reach one.
//   - When its pods are replaced: if the hash of the inputs of the Deployment differs, and not if the Deployment
//     differs. Defaulted fields and other releases of the operator thus restart nothing.
//   - When a companion that was removed from the spec is completely removed, so that the status no longer lists it.
//   - Whether a rotation of credentials has to wait for companions (Outdated).
//
// # Reads and writes
//
// The package reads status.companions, and the pods of an unavailable companion from the API server. In the hosting
// cluster it writes the Deployment CLUSTER-NAME and the Secret CLUSTER-NAME-files of each companion. Inside the cluster
// it writes bindings for kubelets, the ConfigMap kube-public/cluster-info with its access, and the EndpointSlices of
// the Service default/kubernetes, with the credentials of an administrator. It returns the statuses; package outcome
// writes them.
//
// # Invariants
//
//   - A companion is listed in the stored status before its first object is created. An object of a companion that the
//     spec no longer has is therefore always found, also if the operator stops between two writes.
//   - A Secret that a pod of an API server mounts is not deleted.
//   - The signatures that the controller manager adds to cluster-info are kept.
//
// # Order
//
// Ensure follows the certificates, which issue the client certificates of companions, and precedes the observation of
// etcd. Companions use the credentials of the present stage of a rotation; rotations later in the same reconciliation
// observe their Deployments.
//
// # Crashes
//
// A listed companion without objects is created by the next reconciliation, and a removed one stays listed until all of
// its objects are deleted. All other writes are repeated if the object differs.
//
// # What may block, and requeues
//
// Requests to the API servers of the cluster have a timeout of five seconds. A failure of one companion is part of its
// status and an error of the step, but does not delay the other companion. Deployments are watched, but pods of
// companions are not: while a companion is unavailable, Ensure requests a reconciliation every ten seconds, for at most
// five minutes. The controller manager can be removed only while an API server is ready, because the objects for nodes
// inside the cluster are deleted first.
package companions
