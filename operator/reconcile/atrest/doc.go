// Package atrest maintains the encryption at rest of a cluster. EnsureKeys brings the Secret of the keys to the stage
// of their rotation, and renders the EncryptionConfiguration of the API servers; Plan decides on the stage and rewrites
// stored objects. Packages rotation and encryption have the rules.
//
// # Decisions
//
//   - Whether a cluster encrypts from the start, or a change goes through the stages of a rotation. Only a new cluster
//     encrypts from the start: in any other cluster, every replica has to be able to decrypt with a new key before any
//     replica encrypts with it.
//   - When a key, the provider or the encrypted resources are replaced: if spec.encryption differs, if the key is older
//     than its maximum age, or if the user requests it. Keys of a KMS plugin are replaced by the plugin.
//   - Whether the objects of a resource may be decrypted. If the user removes a resource from spec.encryption by
//     mistake, its objects would be stored in plain text, so the user has to confirm the removal with an annotation
//     (DecryptAnnotation). Without it, the encryption stays as it is.
//   - Which retired keys are kept: those that a backup of the cluster needs, so that the backup can be restored.
//
// # Reads and writes
//
// EnsureKeys reads and writes the Secret CLUSTER-encryption-keys, reads the Secret CLUSTER-configuration and, if there
// are retired keys, the ApiServerBackups of the namespace, and removes the annotation DecryptAnnotation once it has
// taken effect. It returns the EncryptionConfiguration; package configuration stores it. Plan writes
// status.rotations.encryptionKeys, including the progress of rewriting, and sends empty patches for stored objects to
// one ready replica.
//
// # Invariants
//
//   - A key is stored in the Secret of the keys before any replica can encrypt with it, because the configuration is
//     rendered from that Secret. A Secret that lacks a key with which replicas encrypt is reported as lost; a new key
//     would not help, and nothing is changed until it is restored.
//   - A key is dropped only after all replicas encrypt with its successor and all stored objects are rewritten.
//   - The stage is stored in the status before the keys change (package stages).
//
// # Order
//
// EnsureKeys precedes the configuration of the pods, and so the pods. Plan follows package rotations and the
// preparation of data, and precedes the membership actions: the mounted configuration is reloaded without a restart,
// but the first configuration, or another KMS socket, restarts pods, because the spec of the pod differs.
//
// # Crashes
//
// EnsureKeys is idempotent in each stage. If the operator stops after it has stored the keys, the next reconciliation
// renders the same configuration. In the last stage, the scheme that is dropped is added to the retired schemes in the
// same write. If the operator stops while objects are being rewritten, it repeats at most the pages since the last
// stored position; a repeated patch writes nothing, because the object is already encrypted with the new key.
//
// # What may block, and requeues
//
// Rewriting takes about five seconds of a reconciliation (rewriteTime): after that, no further page of objects is
// requested, and the next reconciliation continues. The hash of the configuration that a replica uses is read from its
// metrics, with a timeout of four seconds, from all replicas at the same time. While a stage waits, the cluster is
// reconciled frequently (stages.Result.Waiting).
package atrest
