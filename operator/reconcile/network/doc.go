// Package network maintains the objects through which the replicas of a cluster are reached: the Services, with the URL
// for clients, the network policies, and the disruption budget, which limits how many members a drain of nodes stops.
//
// # Decisions
//
//   - EnsureServices decides which fields of a Service the operator restores, and which fields of users and other
//     controllers it keeps. It also determines the URL for clients: the first address of the load balancer, else the
//     DNS name of the Service.
//   - EnsurePolicies decides which policies exist. desired.NetworkPolicies has their rules.
//   - EnsureBudget decides how many members must stay available: a majority of the present or of the desired voters,
//     whichever are more.
//
// # Reads and writes
//
// The package writes the Service CLUSTER, the Service CLUSTER-members of an embedded etcd, network policies with the
// same two names, and the PodDisruptionBudget CLUSTER. It reads them from the cache. Each update contains the resource
// version of the object that was read, so that an outdated view causes a conflict. The only input in addition to the
// spec is the number of voters: from etcd if its members are known, else from status.voters.
//
// # Invariants
//
//   - An update keeps the cluster IP of a Service, and its node ports unless the type becomes ClusterIP.
//   - The Service for members is headless. DNS then resolves the host in the peer URL of a member to the address of its
//     pod.
//   - Evictions leave a majority of the voters ready, also of the larger of two memberships while members join or
//     leave. Only pods that are not ready may be evicted at any time.
//
// # Order
//
// The Services precede the certificates, because the serving certificate contains their addresses and kubeconfigs
// contain the URL. If a Service cannot be written, the reconciliation skips the certificates and all steps that need
// them, including the creation of pods. The network policies precede the pods that they protect, but their failure
// delays nothing. The budget follows the observation of the members.
//
// # Crashes and requeues
//
// All objects are functions of the spec and the number of voters, so the next reconciliation repeats whatever was
// interrupted. One change consists of two writes: a Service for members that is not headless is deleted and created
// again. In between, members keep their connections but cannot resolve new addresses of restarted members.
//
// The package requests no reconciliation: its objects are watched, including the status of the Service, in which a load
// balancer publishes its address. It sends requests only to the hosting cluster.
package network
