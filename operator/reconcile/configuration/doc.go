// Package configuration validates the spec of a cluster and the files of its configuration, and stores the files for
// the pods. Checks caches the results.
//
// # Decisions
//
//   - Whether the spec is valid (Checks.Spec): the rules of the CRD, the flags and the encryption, as the API server
//     itself would check them, and changes that are not possible for existing volumes.
//   - Whether the files to which the spec refers are valid. If not, the last valid files stay in use, and the status
//     reports the error. Without valid files, the spec counts as invalid.
//   - Whether the hosting cluster accepts a pod with spec.patches.pod. A dry run shows it.
//
// An invalid spec is a result and not an error: it is reported, and no step changes anything that depends on the spec
// (Outcome.MayChange).
//
// # Reads and writes
//
// Ensure reads the ConfigMaps and Secrets of the user from the API server. It writes the Secret CLUSTER-configuration,
// which has the last valid files and is updated in place, and one immutable Secret for each set of files that API
// servers read only when they start. The name of an immutable Secret contains the hash of its content.
//
// # Invariants
//
//   - Pods mount only validated files, never the user's objects. A replica that restarts at any time finds files with
//     which it starts.
//   - A pod that restarts finds the static files that it was created for: their Secret is deleted only when no pod
//     mounts it. Otherwise, a change of the files would reach a replica by accident, outside of a rollout.
//   - A key that a pod mounts from the Secret CLUSTER-configuration stays in the Secret, because the kubelet does not
//     start the containers of a pod whose file is missing.
//
// # Order and crashes
//
// The keys of the encryption precede this step, which stores the EncryptionConfiguration. It precedes the certificates,
// whose hash includes the reloadable files, and the pods. If it fails, no pod is created or replaced, but certificates,
// companions and rotations of credentials continue. If the operator stops between the writes, the new static Secret
// exists without a pod, and the next reconciliation finds it by its name.
//
// # What may block, and requeues
//
// A validation loads the files with the loaders of the API server in the operator's process, which takes milliseconds
// to seconds. Checks therefore keeps the result until the spec or the files change. A dry run that was not accepted is
// repeated in each reconciliation. The lock of Checks is not held while a validation runs. The objects that the spec
// names are watched (package watches); the step requests no reconciliation.
package configuration
