// Package watches selects the changes of objects in the hosting cluster that cause a reconciliation of an
// ApiServerCluster: of the cluster itself, of the objects that it owns or that were detached from it, of its backup
// schedules, and of the ConfigMaps and Secrets of users that its spec names.
//
// # Decisions
//
//   - Of the cluster itself, only changes of the spec and of annotations count. The operator writes the status in most
//     reconciliations; its own writes must not cause further reconciliations.
//   - An object belongs to the cluster that its owner reference names. Claims and Secrets without an owner reference
//     belong to the cluster in their label, since the garbage collector must not see an owner (desired.Detach).
//   - A ConfigMap or Secret of a user belongs to all clusters whose spec names it (desired.Sources).
//
// # What is not watched
//
// Members of etcd, API servers and objects inside the cluster, APIServices and other cluster-scoped objects of a host,
// pods of companions and ApiServerBackups. Steps that depend on them request the next reconciliation themselves, and
// package outcome reconciles every cluster from time to time.
//
// # Invariants
//
//   - A missed event delays a reconciliation, and loses nothing: a reconciliation reads the whole state and does not
//     depend on the event.
//   - Two reconciliations of one cluster never run at the same time; the workqueue of controller-runtime guarantees it.
//     Different clusters are reconciled by up to four workers.
//   - The caches contain no content of objects of users: for their ConfigMaps and Secrets, the cache has only names,
//     UIDs and resource versions, and for pods and claims only metadata without annotations.
//
// The package writes nothing. Its functions run in the event handlers of the cache and read only from caches, so that
// they do not block.
package watches
