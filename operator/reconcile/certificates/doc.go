// Package certificates maintains the certificate authorities, the certificates, the service-account keys and the
// administrator's kubeconfig of a cluster.
//
// # Decisions
//
//   - Which of the authorities, certificates and keys that the spec needs (desired.Domains, desired.Certificates) are
//     missing, and whether a missing one may be created. It may not if its replacement would do harm: it is then
//     reported as lost.
//   - Which leaf is issued again: a leaf that is due for renewal, does not match the spec, or was signed by another
//     authority than the stage of the rotation requires (pki.Bundle.Evaluate).
//   - Whether the certificates and authorities that the user provides can be used. If not, the certificates and
//     authorities in use stay.
//
// Package rotations decides when an authority or key is replaced. This package only brings the Secrets to the stage
// that the status records.
//
// # Reads and writes
//
// Ensure reads status.rotations, the Secrets of the cluster (from the cache) and the Secrets that spec.certificates
// names (from the API server). It writes one Secret for each trust domain, one for each leaf, and one for the
// service-account keys, and removes the annotation ReplaceSecretsAnnotation once it has taken effect. If the key of an
// authority was lost in a later stage of a rotation, it also writes status.rotations. EnsureKubeconfig writes the
// Secret with the administrator's kubeconfig. AnnotatePods annotates pods, so that the kubelets update the mounted
// files.
//
// # Invariants
//
//   - An authority is never replaced in one step: its clients would lose access.
//   - A Secret that is missing although it is in use is not created again if that would do harm. It is reported as
//     lost, unless the user permits its replacement. Until then, nothing that depends on the spec is changed.
//   - An authority is stored before a leaf that it has issued. If the authority cannot be written, the step ends, so
//     that no pod mounts a leaf of an authority that is not stored.
//   - Pods mount only validated certificates: the user's certificates are copied into Secrets of the cluster.
//   - Ensure is idempotent in each stage of a rotation.
//
// # Order
//
// The Services precede this step, because the serving certificate contains their addresses. All steps that connect to
// replicas or create pods follow it, and are skipped if it fails. Ensure writes Secrets itself instead of returning
// objects to be applied, because the order of reads and writes matters: whether an authority was lost depends on all
// leaves as they were read.
//
// # Crashes
//
// If the operator stops after it has stored an authority, the leaves are missing or were signed by the former
// authority, which replicas still trust; the next reconciliation issues them. The reverse order would leave a leaf
// whose authority is stored nowhere, and the next reconciliation would treat the authority as lost. If the operator
// stops between two leaves, they belong to consecutive stages of a rotation, which accept each other. Each Secret is
// written with the resource version with which it was read, so that two operators cannot store two different keys.
//
// # Requeues
//
// The runner requests a reconciliation for the renewal of each certificate and authority (Result.Expiries). Changes of
// the Secrets, including the Secrets of users, are watched. Nothing blocks except for requests to the hosting cluster:
// Ensure does not connect to replicas.
package certificates
