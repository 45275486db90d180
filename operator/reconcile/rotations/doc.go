// Package rotations replaces the certificate authorities and the service-account keys of a cluster in stages, so that
// no request fails. Package operator/rotation defines the stages and the conditions for entering them; this package
// observes the inputs of the conditions, and stores the decisions.
//
// # Life of a rotation
//
//   - Plan observes which credentials every replica, kubeconfig, companion and APIService uses, lets rotation.Plan
//     decide, and writes the next stage to the status. Nothing else follows from a stage in the same reconciliation, so
//     that a crash cannot leave Secrets of a stage that the status does not know.
//   - In the next reconciliation, package certificates requests the authorities and keys of the stage from
//     AdvanceAuthority and AdvanceKeys, stores them in Secrets, and issues the certificates again. Both functions are
//     idempotent.
//   - RestartAuthorities goes back to TrustBoth if the key of the new authority was lost.
//   - Plan lists the pods that have to restart because they read an authority only when they start. Package members
//     restarts them, one at a time, like pods with an outdated spec.
//
// # Reads and writes
//
// While a rotation is in progress, Plan probes the replicas, and reads the Deployments of companions,
// ApiServerKubeconfigs with their Secrets, and the APIServices of a cluster in mode Extension from the API server. It
// writes status.rotations.authorities and status.rotations.serviceAccountKeys, with an optimistic lock, and nothing
// else.
//
// # Invariants
//
//   - An authority is never replaced in one step: its clients would lose access.
//   - The writes of a stage have an order that matters, because a stage is entered only once everything uses the
//     credentials of the previous one. So Plan writes the stage itself, before anything acts on it.
//   - An observation that fails ends the step with an error. Credentials that could not be read never count as up to
//     date.
//   - The replacement of a Secret that is in the middle of a rotation is resumed even if the status has no stage, for
//     example after the cluster was restored from a manifest: the stages begin again with TrustBoth, which leaves such
//     a Secret as it is.
//
// # Order
//
// Plan follows the certificates, whose Secrets it compares with the credentials in use, and the observation of the
// members. It precedes the membership actions, which restart the pods that it names. The stages of authorities and of
// service-account keys are independent.
//
// # What may block, and requeues
//
// A probe of a replica takes at most two seconds, and all replicas are probed at the same time. While a rotation waits
// for a replica, kubeconfig or companion, the cluster is reconciled every two seconds, or more often within a minute
// after the condition Progressing has changed (package outcome). While it waits only for time, for example for the
// overlap of two authorities, Plan requests a reconciliation at the end of that time. Between rotations, it requests
// one when the next rotation is due.
package rotations
