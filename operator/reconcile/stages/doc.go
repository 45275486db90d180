// Package stages stores the stages of rotations in the status of a cluster. Package rotation defines the stages and
// decides when they are entered. Packages rotations and atrest observe, and packages certificates and atrest change the
// Secrets.
//
// # Data
//
// There are three kinds of rotations, which are independent: of certificate authorities, of service-account keys, and
// of the encryption at rest. Each has a field in status.rotations with its stage, the time at which the stage was
// entered, and, for the encryption, the progress of rewriting stored objects. A field that is nil means that no
// rotation is in progress.
//
// # Invariants
//
//   - A stage is stored before anything acts on it. The Secrets are changed by the next reconciliation. A crash between
//     the two leaves a stage whose changes are not made yet, and the changes are idempotent.
//   - The write has an optimistic lock on the cluster. Of two operators that decide at the same time, one gets a
//     conflict and observes again, so that they never enter different stages.
//   - The time at which a stage was entered is stored with it, so that minimum durations survive a restart of the
//     operator.
//
// # Requeues
//
// Result collects, for the runner, whether the next reconciliation has to follow immediately (Entered), whether the
// stage waits for something that no watch reports (Waiting), and when a minimum duration ends (Due).
package stages
