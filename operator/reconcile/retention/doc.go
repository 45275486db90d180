// Package retention keeps the data of clusters beyond their deletion: volumes and the Secrets of their keys. It decides
// whether such objects have an owner reference to their cluster, marks them as retained when the cluster is deleted,
// and lets a new cluster adopt them.
//
// # Life of retained data
//
//   - EnsureOwnership gives durable objects (desired.Durable) an owner reference, or an annotation with the UID of the
//     cluster if the deletion needs a check.
//   - When the cluster is deleted, Retain writes the record, a Secret with the cluster's spec and status, and marks the
//     durable objects with the label RetainedLabel.
//   - A new cluster with the same name and spec.adopt has Adopt make it the owner of these objects, and continues with
//     the former status: the members, their states, and rotations in progress.
//   - If that cluster is deleted before the adoption is complete, RevertAdoption marks the objects as retained again.
//
// # Reads and writes
//
// The package reads claims, the Secrets of keys, the record and pods from the API server; only EnsureOwnership, which
// runs in each reconciliation, reads Secrets from the cache. The package writes owner references, annotations and
// labels of claims and Secrets, the record CLUSTER-retained, and, for an adoption, the whole status of the new cluster
// with an optimistic lock.
//
// # Invariants
//
//   - Durable objects of a cluster that retains its data have no owner reference, so that the garbage collector never
//     deletes them.
//   - The record is written before the first object is marked as retained, because marked objects without it could not
//     be adopted. It is marked last, and deleted after the adoption is recorded in the status of the new cluster.
//   - An object is adopted only if it was retained from the cluster whose UID spec.adopt has. A missing Secret of keys
//     is an error: a new one would make tokens, kubeconfigs or stored objects useless, so the user decides.
//   - A claim that may have the only copy of acknowledged writes is never deleted, whatever the deletion policy is
//     (RetainClaim).
//
// # Order
//
// Adopt is the first step that changes anything, because a retained object may have the name of an object that another
// step would create. EnsureOwnership follows the certificates and the observation. Retain and RevertAdoption are steps
// of the deletion, before the first object is deleted. These orders are the reason why the functions write objects
// themselves instead of returning objects to be applied.
//
// # Crashes
//
// Each function can be repeated. An interrupted Retain finds the record and marks the rest. An interrupted Adopt finds
// objects that it already owns and counts them as adopted; as long as the status does not record the adoption, nothing
// else is created. If the status of an adopted cluster is lost, the adoption is recorded again, if the cluster owns
// volumes and nothing is left to adopt.
//
// The package requests no reconciliation: claims and Secrets are watched. Nothing blocks but requests to the hosting
// cluster.
package retention
