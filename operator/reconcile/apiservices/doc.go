// Package apiservices registers API groups. Ensure registers extension API servers inside a cluster, with the Services
// and EndpointSlices through which the aggregator reaches them, and a cluster in mode Extension in its host, whose API
// it extends. EnsureHostAccess maintains what API servers in mode Extension need in their host.
//
// # Decisions
//
//   - When an APIService may be created. Inside a cluster, all replicas must be able to reach the endpoints of
//     extension API servers; in the host, a ready replica must serve the version. An APIService that is not available
//     fails discovery, and with it the deletion of namespaces and garbage collection.
//   - Which APIServices are no longer in the spec. They are found by the labels of the cluster.
//   - When to read an APIService again, since nothing inside the cluster or in the host is watched.
//
// # Reads and writes
//
// Inside the cluster, the package reads and writes APIServices, Services, EndpointSlices and namespaces, with the
// credentials of an administrator. In the host, it reads and writes APIServices, ClusterRoleBindings and a RoleBinding,
// which cannot have an owner reference to the cluster, and a ServiceAccount and a Secret with a kubeconfig, which have
// one. It reads the CA bundles that entries name in Secrets and ConfigMaps of the hosting cluster, and returns the
// statuses; package outcome writes them.
//
// # Invariants
//
//   - An APIService is listed in the stored status before it is created, so that it is deleted later even if the
//     operator stops between two writes.
//   - An APIService never refers to a missing Service: it is created last, and deleted first.
//   - An object that was not created for the cluster is not changed (owned.ErrForeign). Two clusters cannot register
//     the same group version in one host.
//   - Only certificates of a CA bundle are copied into an APIService, which more users can read than a Secret.
//   - An APIService in the host that was created stays while no replica is ready. It is deleted before the replicas
//     when the cluster is deleted (Unregister).
//
// # Order
//
// EnsureHostAccess precedes the pods, which use the ServiceAccount. Ensure is the last step that changes anything: it
// needs ready replicas, and works with the last state that could be read. In a rotation, the caBundle of an APIService
// in the host has the present authorities, and rotations wait for it (Outdated).
//
// # Crashes
//
// Each object is created or updated if it differs, and objects that are not in the spec are pruned by label, so that
// the next reconciliation completes whatever was interrupted. A removed APIService stays in the status until its
// objects are deleted.
//
// # What may block, and requeues
//
// Requests to the API servers of a cluster have a timeout of five seconds. A failure concerns one APIService, is part
// of its status and is not an error. For a minute after the condition APIServicesAvailable has changed, an APIService
// that is not available is read every two seconds, and after that at the usual intervals of package outcome. A cluster
// with APIServices is never quiet.
package apiservices
